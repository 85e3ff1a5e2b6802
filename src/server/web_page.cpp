#include "server/web_page.h"

namespace spate {
namespace {

constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::string content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "image/svg+xml";
}

}  // namespace

bool asks_for_web_page(const HttpRequest& request) {
  return request.header("accept").find("text/html") != std::string_view::npos &&
         request.header("accept-encoding").find("gzip") != std::string_view::npos;
}

HttpResponse web_page_response(std::string_view name) {
  for (const WebPageFile& file : web_page_files()) {
    if (name != file.name) continue;
    // index.html names the others with a hash of their sources: an address never changes its contents.
    const bool is_index = name == "index.html";
    return {.content_type = content_type_of(name),
            .body = std::string(file.gzip),
            .headers = {{"Content-Encoding", "gzip"},
                        {"Cache-Control", is_index ? "no-cache" : "public, max-age=31536000, immutable"},
                        {"Vary", "Accept, Accept-Encoding"},
                        {"Content-Security-Policy", kContentSecurityPolicy},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"}}};
  }
  return http_response_of(http_error(404, "The web page has no such file."));
}

}  // namespace spate

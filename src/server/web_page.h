// The web page: files that the build takes from web/dist, compressed, and how they are served.
#pragma once

#include <span>
#include <string_view>

#include "server/http_server.h"

namespace spate {

struct WebPageFile {
  std::string_view name;  // "app.js"
  std::string_view gzip;
};
std::span<const WebPageFile> web_page_files();

// A browser: it takes HTML and gzip.
bool asks_for_web_page(const HttpRequest& request);
// The file, or 404. The policy it carries lets the page run its own script only and reach no other server.
HttpResponse web_page_response(std::string_view name);

}  // namespace spate

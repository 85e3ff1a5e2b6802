#include "server/http_message.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>

#include "server/http_framing.h"

namespace spate {

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return {};
}

HttpResponse http_response_of(const ApiError& error) {
  HttpResponse response{.status = error.http_status, .body = error_json(error)};
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  // The SDKs repeat requests that got a 5xx; a bug or a missing feature does not go away by that.
  if (error.http_status == 500 || error.http_status == 501) response.headers.emplace_back("X-Should-Retry", "false");
  return response;
}

std::string_view http_status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

namespace {

void append_header(std::string_view name, std::string_view value, std::string& out) {
  out += name;
  out += ": ";
  std::copy_if(value.begin(), value.end(), std::back_inserter(out), [](char c) { return c != '\r' && c != '\n'; });
  out += "\r\n";
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string format_http_head(const HttpHead& head, const HttpHeaders& headers) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", head.status, http_status_text(head.status));
  append_header("Server", "spate", out);
  append_header("Date", http_date(), out);
  if (!head.content_type.empty()) append_header("Content-Type", head.content_type, out);
  if (head.content_length >= 0) {
    append_header("Content-Length", std::to_string(head.content_length), out);
  } else if (!head.is_http_1_0) {
    append_header("Transfer-Encoding", "chunked", out);
  }
  if (!head.keep_alive) {
    append_header("Connection", "close", out);
  } else if (head.is_http_1_0) {
    append_header("Connection", "keep-alive", out);
  }
  for (const auto& [name, value] : headers) append_header(name, value, out);
  return out + "\r\n";
}

void append_http_chunk(std::string_view bytes, std::string& out) {
  char size[16];
  const std::to_chars_result result = std::to_chars(size, size + sizeof size, bytes.size(), 16);
  out.append(size, result.ptr);
  out += "\r\n";
  out += bytes;
  out += "\r\n";
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

bool is_valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) return invalid_argument("the path has a malformed % sequence");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

void add_cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed_origins,
                      HttpHeaders& headers) {
  const std::string_view origin = request.header("origin");
  if (origin.empty()) return;
  for (const std::string& allowed : allowed_origins) {
    if (allowed != "*" && allowed != origin) continue;
    headers.emplace_back("Access-Control-Allow-Origin", allowed == "*" ? "*" : std::string(origin));
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
    if (allowed != "*") headers.emplace_back("Vary", "Origin");
    if (request.method == "OPTIONS") {
      headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, HEAD, OPTIONS");
      const std::string_view asked = request.header("access-control-request-headers");
      headers.emplace_back("Access-Control-Allow-Headers",
                           asked.empty() ? "Authorization, Content-Type, X-Request-Id" : std::string(asked));
      headers.emplace_back("Access-Control-Max-Age", "600");
    }
    return;
  }
}

std::optional<ApiError> take_target(std::string_view target, HttpRequest& request) {
  const std::optional<std::string_view> origin = origin_form(target);
  if (!origin) return http_error(400, "The request's target is neither a path nor an http URI.");
  const size_t question = origin->find('?');
  Result<std::string> path = percent_decode(question == 0 ? "/" : origin->substr(0, question));
  if (!path.ok()) return http_error(400, path.status().message());
  request.path = std::move(*path);
  if (question != std::string_view::npos) request.query = std::string(origin->substr(question + 1));
  return std::nullopt;
}

std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(key) || pair.size() <= key.size() || pair[key.size()] != '=') continue;
    HttpRequest decoded;
    const bool is_valid = !take_target("/" + std::string(pair.substr(key.size() + 1)), decoded);
    return is_valid ? decoded.path.substr(1) : std::string();
  }
  return {};
}

}  // namespace spate

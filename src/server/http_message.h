// The text of HTTP: status lines, heads and chunks of answers; what is read out of a request's head. Internal to the
// server.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace spate {

std::string_view http_status_text(int status);  // "Not Found"

struct HttpHead {
  int status = 200;
  std::string_view content_type;
  long content_length = -1;  // -1: chunked, or until the connection closes when the client speaks HTTP/1.0
  bool keep_alive = true;
  bool is_http_1_0 = false;
};
// The head with its empty line. `headers` come from our own code and from checked client text: line breaks in values
// are dropped, so that no value can start another header.
std::string format_http_head(const HttpHead& head, const HttpHeaders& headers);
void append_http_chunk(std::string_view bytes, std::string& out);

std::string lower_case(std::string_view text);  // of ASCII

// A client's X-Request-Id is echoed in headers and ids: visible ASCII, at most 128 characters.
bool is_valid_request_id(std::string_view id);

// Path and query of "/v1/models?x=y" or "http://host/v1/models?x=y".
std::optional<ApiError> take_target(std::string_view target, HttpRequest& request);
// What a browser needs to let a page of another origin read the answer; nothing when the origin is not allowed.
void add_cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed_origins,
                      HttpHeaders& headers);
// The value of a key in a query, percent-decoded; empty: there is none.
std::string query_value(std::string_view query, std::string_view key);

}  // namespace spate

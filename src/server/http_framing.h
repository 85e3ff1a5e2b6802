// Rules for a request's head: where it ends, whether a body follows, and for which host it is. Two servers in a row
// that disagree on this let one client's bytes run as another client's request (request smuggling), so all that is
// unusual is refused. Internal to the server.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "server/http_server.h"

namespace spate {

// Finds the end of a head in bytes that come in pieces. Lines end in CRLF, no line begins with white space (that would
// continue the line before it), and there is no control character but tab.
class HttpHeadScanner {
 public:
  enum class State { kIncomplete, kComplete, kMalformed };

  // `bytes` is the head from its first byte, longer at each call. What follows a complete head is not looked at.
  State scan(std::string_view bytes);
  size_t num_head_bytes() const { return pos_; }         // of a complete head, its empty line included
  std::string_view problem() const { return problem_; }  // of a malformed one

 private:
  size_t pos_ = 0;  // scanned so far
  size_t line_begin_ = 0;
  std::string_view problem_;
};

// What the fields say about body and host. `version` is 10 or 11.
std::optional<ApiError> check_http_framing(const HttpHeaders& headers, int version);

// The path with its query of an origin-form ("/a?b") or an absolute-form target ("http://host/a?b"); "*" stays. Nothing
// for all else.
std::optional<std::string_view> origin_form(std::string_view target);

}  // namespace spate

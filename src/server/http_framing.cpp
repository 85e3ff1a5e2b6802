#include "server/http_framing.h"

#include <strings.h>

#include <algorithm>

namespace spate {
namespace {

constexpr size_t kMaxLengthDigits = 18;  // below 2^63

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// A name, an IPv4 address or an IPv6 address in brackets, then perhaps a port. Empty is allowed.
bool is_host(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return c > 0x20 && c < 0x7F && std::string_view("\"#,/<>?@\\^`{|}").find(c) == std::string_view::npos;
  });
}

}  // namespace

HttpHeadScanner::State HttpHeadScanner::scan(std::string_view bytes) {
  while (pos_ < bytes.size()) {
    const char c = bytes[pos_];
    if (c == '\r') {
      if (pos_ + 1 == bytes.size()) return State::kIncomplete;
      if (bytes[pos_ + 1] != '\n') {
        problem_ = "a carriage return without a line feed";
        return State::kMalformed;
      }
      const bool is_empty_line = pos_ == line_begin_;
      pos_ += 2;
      line_begin_ = pos_;
      if (is_empty_line) return State::kComplete;
      continue;
    }
    if (is_control(c)) {
      problem_ = c == '\n' ? "a line feed without a carriage return" : "a control character";
      return State::kMalformed;
    }
    if (pos_ == line_begin_ && (c == ' ' || c == '\t')) {
      problem_ = "a line that begins with white space";
      return State::kMalformed;
    }
    ++pos_;
  }
  return State::kIncomplete;
}

std::optional<ApiError> check_http_framing(const HttpHeaders& headers, int version) {
  int num_hosts = 0, num_lengths = 0, num_codings = 0;
  for (const auto& [name, value] : headers) {
    if (name == "host") {
      ++num_hosts;
      if (!is_host(value)) return http_error(400, "The Host header is not a host with an optional port.");
    } else if (name == "content-length") {
      ++num_lengths;
      if (value.empty() || value.size() > kMaxLengthDigits || !std::all_of(value.begin(), value.end(), is_digit)) {
        return http_error(400, "Content-Length must be one number.");
      }
    } else if (name == "transfer-encoding") {
      ++num_codings;
      if (!equals_ignoring_case(trim(value), "chunked")) {
        return http_error(400, "The only Transfer-Encoding taken here is chunked.");
      }
    }
  }
  if (num_hosts > 1) return http_error(400, "There is more than one Host header.");
  if (num_hosts == 0 && version >= 11) return http_error(400, "The Host header is missing.");
  if (num_lengths > 1) return http_error(400, "There is more than one Content-Length header.");
  if (num_codings > 1) return http_error(400, "There is more than one Transfer-Encoding header.");
  if (num_codings > 0 && num_lengths > 0) {
    return http_error(400, "Content-Length and Transfer-Encoding exclude each other.");
  }
  if (num_codings > 0 && version < 11) return http_error(400, "HTTP/1.0 has no Transfer-Encoding.");
  return std::nullopt;
}

std::optional<std::string_view> origin_form(std::string_view target) {
  if (target.starts_with('/') || target == "*") return target;
  const size_t scheme_end = target.find("://");
  if (scheme_end == std::string_view::npos) return std::nullopt;
  const std::string_view scheme = target.substr(0, scheme_end);
  if (!equals_ignoring_case(scheme, "http") && !equals_ignoring_case(scheme, "https")) return std::nullopt;
  const std::string_view rest = target.substr(scheme_end + 3);
  const size_t host_end = std::min(rest.find_first_of("/?"), rest.size());
  if (host_end == 0 || !is_host(rest.substr(0, host_end))) return std::nullopt;
  if (host_end == rest.size()) return "/";
  return rest.substr(host_end);  // "?query" of an empty path stays without its "/"
}

}  // namespace spate

// libFuzzer target: any bytes as what a connection sends end in a request or in an error. What HttpHeadScanner and
// check_http_framing let through, the parser behind them must see alike: where the head ends, and whether and how long
// a body follows. No value of a request gets a line of its own in the head of an answer. The first byte says in which
// pieces the bytes come. Seeds: test/fuzz/http.  fuzz/http_fuzz -max_len=16384 <corpus> test/fuzz/http
#define BOOST_ERROR_CODE_HEADER_ONLY
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/http_framing.h"
#include "server/http_message.h"

namespace {

namespace http = boost::beast::http;
using spate::HttpHeadScanner;

constexpr size_t kMaxHeadBytes = 8192, kMaxBodyBytes = 4096;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_error(const spate::ApiError& error) {
  const auto json = nlohmann::json::parse(spate::error_json(error), nullptr, false);
  require(!json.is_discarded() && error.http_status >= 400);
}

// The same end of the head, and the same problem, in whatever pieces it comes.
HttpHeadScanner scan(std::string_view bytes, size_t piece_size, HttpHeadScanner::State& state) {
  HttpHeadScanner whole, in_pieces;
  state = whole.scan(bytes);
  HttpHeadScanner::State last = HttpHeadScanner::State::kIncomplete;
  for (size_t end = 0; end < bytes.size() && last == HttpHeadScanner::State::kIncomplete;) {
    end = std::min(bytes.size(), end + piece_size);
    last = in_pieces.scan(bytes.substr(0, end));
  }
  require(last == state && in_pieces.problem() == whole.problem());
  if (state == HttpHeadScanner::State::kComplete) require(in_pieces.num_head_bytes() == whole.num_head_bytes());
  return whole;
}

// An answer that repeats what the request says.
void check_answer(const spate::HttpRequest& request, bool is_http_1_0) {
  spate::HttpHeaders headers;
  if (const auto id = request.header("x-request-id"); spate::is_valid_request_id(id)) {
    headers.emplace_back("X-Request-Id", std::string(id));
  }
  spate::add_cors_headers(request, {"http://known.example", "*"}, headers);
  const std::string head = spate::format_http_head({.content_type = "text/plain", .is_http_1_0 = is_http_1_0}, headers);
  HttpHeadScanner scanner;
  require(scanner.scan(head) == HttpHeadScanner::State::kComplete && scanner.num_head_bytes() == head.size());
}

void read_body(http::request_parser<http::string_body>& parser, std::string_view rest) {
  boost::system::error_code error;
  parser.eager(true);
  while (!parser.is_done() && !rest.empty()) {
    const size_t used = parser.put(boost::asio::buffer(rest.data(), rest.size()), error);
    require(used <= rest.size());
    if (error) return;
    if (used == 0) return;
    rest.remove_prefix(used);
  }
  require(parser.get().body().size() <= kMaxBodyBytes);
}

void serve(std::string_view bytes, size_t piece_size) {
  HttpHeadScanner::State state;
  const HttpHeadScanner scanner = scan(bytes, piece_size, state);
  if (state != HttpHeadScanner::State::kComplete || scanner.num_head_bytes() > kMaxHeadBytes) return;
  http::request_parser<http::string_body> parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(kMaxBodyBytes);
  boost::system::error_code error;
  const size_t used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error) return;
  require(parser.is_header_done() && used == scanner.num_head_bytes());

  const auto& header = parser.get();
  spate::HttpRequest request;
  request.method = std::string(header.method_string());
  for (const auto& field : header) {
    std::string name(field.name_string());
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  if (header.version() != 10 && header.version() != 11) return;
  if (auto problem = spate::check_http_framing(request.headers, static_cast<int>(header.version()))) {
    return check_error(*problem);
  }
  const std::string_view length = request.header("content-length");
  const bool is_chunked = !request.header("transfer-encoding").empty();
  require(parser.chunked() == is_chunked);
  require(parser.content_length().has_value() == !length.empty());
  if (!length.empty()) require(*parser.content_length() == std::stoull(std::string(length)));
  if (!is_chunked && (length.empty() || *parser.content_length() == 0)) require(parser.is_done());

  check_answer(request, header.version() == 10);
  const std::string_view target(header.target().data(), header.target().size());
  if (auto problem = spate::take_target(target, request)) return check_error(*problem);
  for (const char* key : {"model", "level", "stream"}) spate::query_value(request.query, key);
  read_body(parser, bytes.substr(used));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  serve({reinterpret_cast<const char*>(data) + 1, size - 1}, 1 + data[0] % 64);
  return 0;
}

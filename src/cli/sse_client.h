// A small blocking HTTP/1.1 client for the load generator and the terminal: one connection a request, server-sent events or a whole body.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace spate {

struct HttpTarget {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string path_prefix;  // of all paths: "/llm"; empty: none
  std::string api_key;
  std::vector<std::pair<std::string, std::string>> headers;  // more of them; without line breaks
};

// "http://host:port", an IPv6 address in brackets. A path in it becomes the prefix, without "/v1" at its end: clients of OpenAI's
// API write it, our paths have it.
Result<HttpTarget> parse_base_url(const std::string& url);

struct HttpReply {
  int status = 0;            // 200 to 599
  std::string content_type;  // as the server wrote it; empty: it named none
  std::string body;          // empty when events were delivered
};

// An empty `body` is a GET. on_event hears of the data of each event of a text/event-stream reply as it arrives, until it
// returns false. should_stop is asked before each read, and ten times a second while nothing comes or goes. Errors:
// unavailable (no connection), data_loss (a broken reply, or one beyond the limits of sse_client.cpp), cancelled
// (should_stop said so).
Result<HttpReply> http_call(const HttpTarget& target, const std::string& path, const std::string& body,
                            const std::function<bool(std::string_view)>& on_event = {},
                            const std::function<bool()>& should_stop = {});

// The same for who passes a reply on: takes_pieces hears of its head, then on_piece has the bytes of its body as they
// come, until it returns false. Where takes_pieces returns false, the body is in the reply.
Result<HttpReply> http_pass(const HttpTarget& target, const std::string& path, const std::string& body,
                            const std::function<bool(const HttpReply& head)>& takes_pieces,
                            const std::function<bool(std::string_view)>& on_piece,
                            const std::function<bool()>& should_stop);
bool is_event_stream(const HttpReply& head);

}  // namespace spate

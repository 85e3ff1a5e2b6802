// ChatConnection: who answers a conversation: a model in this process, or a server. Both speak the OpenAI protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/arguments.h"
#include "cli/sse_client.h"

namespace spate {

struct ChatModel {
  std::string name;
  std::string place;          // the model's folder or the server's address
  int64_t max_model_len = 0;  // 0: not known
};

// What one chunk of a stream says.
struct AnswerChunk {
  std::string reasoning, content;
  std::string finish_reason;               // "stop", "length", ...; empty: more comes
  std::optional<int64_t> num_prompt_tokens;  // with the last chunk
  int64_t num_completion_tokens = 0;
};

class ChatConnection {
 public:
  using OnChunk = std::function<void(const AnswerChunk&)>;
  virtual ~ChatConnection() = default;

  virtual const ChatModel& model() const = 0;
  // Runs one streamed request (`body`: JSON with "stream": true). should_stop is asked at least ten times a second; when it
  // says so the request is ended and the answer so far counts. Errors: out_of_range where the prompt is too long for the
  // model, else what the server said.
  virtual Status stream(const std::string& path, const std::string& body, const OnChunk& on_chunk,
                        const std::function<bool()>& should_stop) = 0;
};

// Reads one chunk of /v1/chat/completions or /v1/completions; an error for what is no such chunk or carries one.
Result<AnswerChunk> parse_answer_chunk(std::string_view json);
// The error that a reply's body tells, in any of the usual envelopes.
Status status_of_error(std::string_view body);

Result<std::unique_ptr<ChatConnection>> open_local_chat(const Arguments& arguments);
// `model_name` empty: the server's first.
Result<std::unique_ptr<ChatConnection>> open_remote_chat(const HttpTarget& target, const std::string& model_name);

}  // namespace spate

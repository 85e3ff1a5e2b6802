// ChatSession: a conversation of the terminal: its messages, its settings, its /commands. Knows no screen and no engine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/chat_connection.h"

namespace spate {

class ChatSession {
 public:
  ChatSession(ChatModel model, const GenerateArguments& arguments);

  // Whether the line is for run_command(): its first word is '/' and a name; "/etc/hosts says ..." is a message.
  static bool is_command(std::string_view line);
  // Gives what to print. Errors are the person's: the session is unchanged.
  Result<std::string> run_command(std::string_view line);
  bool has_ended() const { return has_ended_; }  // by /bye

  // A turn: the person's text, then the answer. Without one the turn is taken back.
  void begin_turn(std::string text);
  void end_turn(std::string answer, int64_t num_tokens);
  void take_turn_back();
  // Forgets the oldest turn; false: only the running one is left.
  bool drop_oldest_turn();

  std::string request_body() const;
  size_t num_turns() const;
  bool drops_oldest() const { return drops_oldest_; }
  bool hides_thinking() const { return hides_thinking_; }
  bool renders_markdown() const { return renders_markdown_; }
  bool shows_timing() const { return shows_timing_; }
  bool has_max_tokens() const { return sampling_.contains("max_tokens"); }

 private:
  using Json = nlohmann::ordered_json;
  Result<std::string> run_set(std::string_view rest);
  std::string set_system(std::string_view text);
  Result<std::string> set_sampling(const std::string& name, std::string_view value);
  Result<std::string> save(const std::string& path) const;
  Result<std::string> load(const std::string& path);
  std::string show() const;
  std::string clear();
  Status check_sampling(const Json& sampling) const;

  const ChatModel model_;
  Json messages_ = Json::array();  // without the system message
  std::string system_;
  Json sampling_ = Json::object();  // fields of the request
  std::optional<bool> thinks_;      // nullopt: as the template does by itself
  bool hides_thinking_ = false, renders_markdown_ = true, shows_timing_ = true, drops_oldest_ = false;
  int64_t num_tokens_ = 0;          // of the conversation, as the last answer told
  bool has_ended_ = false;
};

}  // namespace spate

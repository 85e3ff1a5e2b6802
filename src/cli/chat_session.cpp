#include "cli/chat_session.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/flag_help.h"
#include "server/api_request.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
constexpr auto kReplace = Json::error_handler_t::replace;  // bytes that are not UTF-8
constexpr std::uintmax_t kMaxChatBytes = 64 << 20;
constexpr std::string_view kFileMark = "spate_chat";

constexpr std::string_view kHelp =
    R"(/set NAME VALUE       temperature, top_p, top_k, min_p, seed, max_tokens, presence_penalty, frequency_penalty,
                      repetition_penalty, stop; VALUE default: the model's
/set think|nothink    whether the model reasons first, where its template can say so
/set NAME on|off      hide-thinking, markdown, timing, drop-oldest (turns, when the conversation grows too long)
/system [TEXT]        the system message; without TEXT: none
/clear                forget the conversation
/drop [N]             forget the oldest turn, or N of them
/show                 model, settings, length of the conversation
/save FILE, /load FILE
/bye                  end; Ctrl-D too
"""                   begins and ends a message of several lines
Ctrl-C                ends the answer; twice: the program)";

const std::vector<std::string> kCommands = {"/help", "/?", "/set", "/system", "/clear", "/drop", "/show", "/save", "/load", "/bye", "/exit"};
const std::vector<std::string> kSamplingNames = {"temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "presence_penalty",
                                                 "frequency_penalty", "repetition_penalty", "stop"};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// Takes the first word off.
std::string take_word(std::string_view& rest) {
  rest = trimmed(rest);
  const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
  std::string word(rest.substr(0, end));
  rest = trimmed(rest.substr(end));
  return word;
}

Status needs_file(std::string_view path, const char* command) {
  return path.empty() ? invalid_argument("{} needs the name of a file", command) : ok_status();
}

Result<Json> read_conversation(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return not_found("{}: there is no such file", path);
  if (std::filesystem::file_size(path, error) > kMaxChatBytes)
    return invalid_argument("{}: is larger than 64 MiB", path);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return not_found("{}: cannot be read", path);
  Json json = Json::parse(text.str(), nullptr, false);
  if (!json.is_object() || !json.contains(kFileMark)) {
    return invalid_argument("{}: is no conversation that /save wrote", path);
  }
  return json;
}

Status check_messages(const Json& messages, const std::string& path) {
  if (!messages.is_array()) return invalid_argument("{}: messages must be an array", path);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const char* role = i % 2 == 0 ? "user" : "assistant";
    const bool is_good = message.is_object() && message.size() == 2 && message.value("role", Json()) == role &&
                         message.contains("content") && message["content"].is_string();
    if (!is_good) {
      return invalid_argument("{}: messages[{}] must be {{\"role\": \"{}\", \"content\": a string}}", path, i, role);
    }
  }
  if (messages.size() % 2 != 0) return invalid_argument("{}: the last message has no answer", path);
  return ok_status();
}

}  // namespace

ChatSession::ChatSession(ChatModel model, const GenerateArguments& arguments)
    : model_(std::move(model)), system_(arguments.system), hides_thinking_(arguments.hide_thinking) {
  if (arguments.temperature >= 0) sampling_["temperature"] = arguments.temperature;
  if (arguments.top_p >= 0) sampling_["top_p"] = arguments.top_p;
  if (arguments.top_k >= 0) sampling_["top_k"] = arguments.top_k;
  if (arguments.max_tokens > 0) sampling_["max_tokens"] = arguments.max_tokens;
  if (arguments.no_thinking) thinks_ = false;
}

bool ChatSession::is_command(std::string_view line) {
  const std::string_view word = line.substr(0, line.find_first_of(" \t\n"));
  return word.size() > 1 && word[0] == '/' && word.find('/', 1) == std::string_view::npos;
}

Result<std::string> ChatSession::run_command(std::string_view line) {
  std::string_view rest = line;
  const std::string word = take_word(rest);
  if (word == "/help" || word == "/?") return std::string(kHelp);
  if (word == "/set") return run_set(rest);
  if (word == "/show") return show();
  if (word == "/clear") return clear();
  if (word == "/save" || word == "/load") {
    RETURN_IF_ERROR(needs_file(rest, word.c_str()));
    return word == "/save" ? save(std::string(rest)) : load(std::string(rest));
  }
  if (word == "/system") return set_system(rest);
  if (word == "/drop") {
    size_t count = 1;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
    if (!rest.empty() && (error != std::errc() || end != rest.data() + rest.size())) {
      return invalid_argument("/drop takes a number of turns, got '{}'", rest);
    }
    size_t num_dropped = 0;
    while (num_dropped < count && num_turns() > 0) {
      messages_.erase(messages_.begin(), messages_.begin() + 2);
      ++num_dropped;
    }
    num_tokens_ = 0;
    return fmt::format("forgot {} turn{}, {} left", num_dropped, num_dropped == 1 ? "" : "s", num_turns());
  }
  if (word == "/bye" || word == "/exit") {
    has_ended_ = true;
    return std::string();
  }
  return invalid_argument("there is no command {}; the nearest is {}, and /help lists all", word, nearest_word(kCommands, word));
}

std::string ChatSession::set_system(std::string_view text) {
  system_ = text;
  return text.empty() ? "there is no system message now" : "the system message is set";
}

std::string ChatSession::clear() {
  messages_.clear();
  num_tokens_ = 0;
  return "the conversation begins again";
}

Result<std::string> ChatSession::run_set(std::string_view rest) {
  std::string name = take_word(rest);
  if (name == "parameter") name = take_word(rest);  // as Ollama has it
  if (name == "system") return set_system(rest);
  if (name == "think" || name == "nothink") {
    thinks_ = name == "think";
    return std::string(*thinks_ ? "the model may reason first" : "the model answers without reasoning");
  }
  for (const auto& [switch_name, value] : {std::pair{"hide-thinking", &hides_thinking_}, {"markdown", &renders_markdown_},
                                           {"timing", &shows_timing_}, {"drop-oldest", &drops_oldest_}}) {
    if (name != switch_name) continue;
    if (rest != "on" && rest != "off") return invalid_argument("/set {} takes on or off, got '{}'", name, rest);
    *value = rest == "on";
    return fmt::format("{} is {}", name, rest);
  }
  if (name == "num_predict") name = "max_tokens";
  if (name == "repeat_penalty") name = "repetition_penalty";
  return set_sampling(name, rest);
}

Result<std::string> ChatSession::set_sampling(const std::string& name, std::string_view value) {
  if (std::find(kSamplingNames.begin(), kSamplingNames.end(), name) == kSamplingNames.end()) {
    std::vector<std::string> names = kSamplingNames;
    for (const char* other : {"system", "think", "nothink", "hide-thinking", "markdown", "timing", "drop-oldest"}) names.emplace_back(other);
    return invalid_argument("there is no setting '{}'; the nearest is '{}'", name, nearest_word(names, name));
  }
  if (value.empty()) return invalid_argument("/set {} needs a value; default: the model's", name);
  Json sampling = sampling_;
  if (value == "default") {
    sampling.erase(name);
  } else if (name == "stop") {
    sampling[name] = std::string(value);
  } else {
    sampling[name] = Json::parse(value, nullptr, false);
    if (!sampling[name].is_number()) return invalid_argument("{} takes a number, got '{}'", name, value);
  }
  RETURN_IF_ERROR(check_sampling(sampling));
  sampling_ = std::move(sampling);
  return fmt::format("{} is {}", name, value == "default" ? "the model's default" : std::string(value));
}

// By the rules of the server, so that a bad value is refused here and not with the next message.
Status ChatSession::check_sampling(const Json& sampling) const {
  Json body = sampling;
  body["messages"] = Json::array({{{"role", "user"}, {"content", "x"}}});
  const int max_model_len = model_.max_model_len > 0 ? static_cast<int>(std::min<int64_t>(model_.max_model_len, INT_MAX)) : INT_MAX;
  ApiResult<ChatRequest> parsed = read_chat_request(body, {.vocab_size = INT_MAX, .max_model_len = max_model_len});
  return parsed.ok() ? ok_status() : Status(StatusCode::kInvalidArgument, parsed.error().message);
}

std::string ChatSession::show() const {
  std::string text = fmt::format("model         {}\nfrom          {}\n", model_.name, model_.place);
  text += fmt::format("conversation  {} turn{}", num_turns(), num_turns() == 1 ? "" : "s");
  if (num_tokens_ > 0) text += fmt::format(", {} tokens", num_tokens_);
  if (model_.max_model_len > 0) text += fmt::format("; the model takes {} tokens", model_.max_model_len);
  text += fmt::format("\nsystem        {}\n", system_.empty() ? "none" : system_);
  text += fmt::format("sampling      {}\n", sampling_.empty() ? "the model's defaults" : sampling_.dump(-1, ' ', false, kReplace));
  text += fmt::format("thinking      {}{}\n", !thinks_ ? "as the model does" : *thinks_ ? "on" : "off", hides_thinking_ ? ", hidden" : "");
  text += fmt::format("markdown {}, timing {}, drop-oldest {}", renders_markdown_ ? "on" : "off", shows_timing_ ? "on" : "off",
                      drops_oldest_ ? "on" : "off");
  return text;
}

Result<std::string> ChatSession::save(const std::string& path) const {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !read_conversation(path).ok()) {
    return invalid_argument("{}: is there already, and is no saved conversation; it stays as it is", path);
  }
  const Json json = {{kFileMark, 1}, {"model", model_.name}, {"system", system_}, {"sampling", sampling_}, {"messages", messages_}};
  std::ofstream out(path, std::ios::binary);
  out << json.dump(1, ' ', false, kReplace) << '\n';
  if (!out.flush()) return resource_exhausted("{}: cannot be written", path);
  return fmt::format("saved {} turns to {}", num_turns(), path);
}

Result<std::string> ChatSession::load(const std::string& path) {
  ASSIGN_OR_RETURN(const Json json, read_conversation(path));
  const Json messages = json.value("messages", Json::array()), sampling = json.value("sampling", Json::object());
  RETURN_IF_ERROR(check_messages(messages, path));
  if (!json.value("system", Json("")).is_string()) return invalid_argument("{}: system must be a string", path);
  if (!sampling.is_object()) return invalid_argument("{}: sampling must be an object", path);
  for (const auto& [name, value] : sampling.items()) {
    if (std::find(kSamplingNames.begin(), kSamplingNames.end(), name) != kSamplingNames.end()) continue;
    return invalid_argument("{}: sampling has '{}', which is no setting", path, name);
  }
  if (const Status status = check_sampling(sampling); !status.ok()) return status.with_context(path);
  messages_ = messages;
  sampling_ = sampling;
  system_ = json.value("system", std::string());
  num_tokens_ = 0;
  return fmt::format("loaded {} turns from {}", num_turns(), path);
}

void ChatSession::begin_turn(std::string text) { messages_.push_back({{"role", "user"}, {"content", std::move(text)}}); }

void ChatSession::end_turn(std::string answer, int64_t num_tokens) {
  messages_.push_back({{"role", "assistant"}, {"content", std::move(answer)}});
  num_tokens_ = num_tokens;
}

void ChatSession::take_turn_back() { messages_.erase(messages_.size() - 1); }

bool ChatSession::drop_oldest_turn() {
  if (messages_.size() < 3) return false;
  messages_.erase(messages_.begin(), messages_.begin() + 2);
  return true;
}

size_t ChatSession::num_turns() const { return messages_.size() / 2; }

std::string ChatSession::request_body() const {
  Json body = {{"model", model_.name}, {"messages", Json::array()}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (!system_.empty()) body["messages"].push_back({{"role", "system"}, {"content", system_}});
  for (const Json& message : messages_) body["messages"].push_back(message);
  body.update(sampling_);
  if (thinks_) body["chat_template_kwargs"] = {{"enable_thinking", *thinks_}};
  return body.dump(-1, ' ', false, kReplace);
}

}  // namespace spate

#include "server/frontend.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "server/allowed_tokens.h"
#include "server/bad_words.h"
#include "server/relaxed_acceptance.h"
#include "server/thinking_budget.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxAllowedTold = 200;
constexpr int64_t kMaxWideLogprobs = 16 << 20;   // held for one answer: about 1 GB of text
constexpr size_t kMaxTemplateBytes = 256 << 10;  // of a request
constexpr int kDefaultAnswerShare = 4;  // of the context; the room for an answer that old turns are left out for

// Runs a chat's text through the parser of each choice.
class ChatAdapter final : public GenerationListener {
 public:
  ChatAdapter(std::shared_ptr<ChatListener> listener, const ChatPrompt& prompt, int n)
      : listener_(std::move(listener)), echo_(prompt.echo) {
    for (int i = 0; i < n; ++i) parsers_.emplace_back(prompt.output);
    last_arguments_.resize(parsers_.size());
    if (const ToolFormat* tools = prompt.output.tools) call_ends_ = {tools->call_end, tools->section_end};
  }

  void on_admitted(const GenerationRequest& request) override {
    listener_->on_admitted(request);
    for (size_t i = 0; !echo_.empty() && i < parsers_.size(); ++i) {
      ChatDelta delta{.delta = {.choice = static_cast<int>(i)}};
      delta.parts.push_back({.kind = ChatPart::Kind::kContent, .text = echo_});
      listener_->on_delta(std::move(delta), {});
    }
  }
  void on_prompt_logprobs(int, std::vector<TokenLogprobs> logprobs) override {
    listener_->on_prompt_logprobs(std::move(logprobs));
  }
  void on_delta(ChoiceDelta delta, const GenerationUsage& usage) override {
    ChatOutputParser& parser = parsers_[static_cast<size_t>(delta.choice)];
    ChatDelta chat;
    // Token by token: several come at once with drafts or stream_interval, and some may be reasoning, others not.
    const std::string_view text = delta.text;
    size_t num_read = 0;
    for (size_t i = 0; i < delta.token_ids.size(); ++i) {
      const bool was_reasoning = parser.is_in_reasoning(), was_content = parser.is_in_content();
      const bool is_last = i + 1 == delta.token_ids.size();
      const size_t end = is_last ? text.size() : delta.text_ends[i];
      parser.append(text.substr(num_read, end - num_read), chat.parts);
      num_read = end;
      if (!delta.logprobs.empty()) chat.is_content.push_back(was_content && parser.is_in_content());
      if (is_last) finish(parser, delta, chat.parts);
      num_reasoning_tokens_ += was_reasoning || parser.is_in_reasoning() ? 1 : 0;
    }
    if (delta.token_ids.empty()) {
      parser.append(text, chat.parts);
      finish(parser, delta, chat.parts);
    }
    std::string& arguments = last_arguments_[static_cast<size_t>(delta.choice)];
    for (const ChatPart& part : chat.parts) {
      if (part.kind == ChatPart::Kind::kToolName) arguments.clear();
      if (part.kind == ChatPart::Kind::kToolArguments) arguments += part.text;
    }
    // A call that a stop string has cut is told as far as it came, and is none that the client should make.
    const bool is_cut = cuts_call(delta) && parser.num_tool_calls() > 0 && !Json::accept(arguments);
    delta.text.clear();
    chat.delta = std::move(delta);
    chat.has_tool_calls = parser.num_tool_calls() > 0 && !is_cut;
    chat.num_reasoning_tokens = num_reasoning_tokens_;
    listener_->on_delta(std::move(chat), usage);
  }
  void on_done(const GenerationUsage& usage) override { listener_->on_done(usage); }

 private:
  // Ends the answer, and is no part of the mark that ends a call.
  bool cuts_call(const ChoiceDelta& delta) const {
    return !delta.stop_string.empty() && std::ranges::none_of(call_ends_, [&](std::string_view end) {
             return end.find(delta.stop_string) != std::string_view::npos;
           });
  }
  void finish(ChatOutputParser& parser, const ChoiceDelta& delta, std::vector<ChatPart>& parts) const {
    const FinishReason reason = delta.finish_reason;
    if (reason == FinishReason::kNone) return;
    parser.finish(parts, reason == FinishReason::kLength || reason == FinishReason::kRepetition || cuts_call(delta));
  }

  std::shared_ptr<ChatListener> listener_;
  std::vector<ChatOutputParser> parsers_;
  std::vector<std::string> last_arguments_;  // of each choice's last call, so far
  std::vector<std::string_view> call_ends_;
  const std::string echo_;
  int64_t num_reasoning_tokens_ = 0;
};

// What a format's text is marked with; special tokens are parts of these.
std::vector<std::string_view> markers_of(const ReasoningFormat* reasoning, const ToolFormat* tools) {
  std::vector<std::string_view> markers;
  if (reasoning) markers = {reasoning->begin, reasoning->end, reasoning->answer_begin, reasoning->answer_end};
  if (reasoning && reasoning->is_harmony) markers.push_back("<|channel|><|message|><|start|><|end|>");
  if (tools) {
    for (const std::string_view marker :
         {tools->section_begin, tools->section_end, tools->call_begin, tools->call_end, tools->name_begin,
          tools->name_end, tools->key_begin, tools->key_end, tools->value_begin, tools->value_end}) {
      markers.push_back(marker);
    }
  }
  return markers;
}

bool is_in_marker(std::string_view token, const std::vector<std::string_view>& markers) {
  return std::ranges::any_of(markers, [&](std::string_view marker) { return marker.find(token) != marker.npos; });
}

// The texts of the tokens that a grammar may choose: all but special ones and those that end a sequence. Special tokens
// that are markers are chosen too.
std::vector<std::string> choosable_token_bytes(const ServingModel& model,
                                               const std::vector<std::string_view>& markers) {
  std::vector<std::string> texts(static_cast<size_t>(model.tokenizer->vocab_size()));
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    if (!model.tokenizer->is_special(id) || is_in_marker(model.tokenizer->token_text(id), markers))
      texts[static_cast<size_t>(id)] = model.tokenizer->token_bytes(id);
  }
  for (const int32_t id : model.eos_token_ids) {
    if (id >= 0 && static_cast<size_t>(id) < texts.size()) texts[static_cast<size_t>(id)].clear();
  }
  return texts;
}

void truncate(const ApiRequest& request, int max_model_len, std::vector<int32_t>& prompt) {
  if (!request.truncate_prompt_tokens) return;
  int64_t wanted = *request.truncate_prompt_tokens;
  if (wanted < 0) wanted = max_model_len - std::max(1, request.max_tokens.value_or(1));
  const auto kept = static_cast<size_t>(std::max<int64_t>(wanted, 0));
  if (prompt.size() <= kept) return;
  if (request.truncates_end) {
    prompt.resize(kept);
  } else {
    prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

std::string_view template_source(const ServingModel& model) {
  return model.chat_template ? std::string_view(model.chat_template->source()) : std::string_view();
}

// The names are checked before the server starts.
template <typename Format>
const Format* format_of(const Result<const Format*>& found) {
  CHECK(found.ok(), "{}", found.status().message());
  return *found;
}

// What is told of each token may be a whole vocabulary.
std::optional<ApiError> check_logprobs(const ApiRequest& request, const std::vector<std::vector<int32_t>>& prompts,
                                       const std::vector<int>& max_tokens) {
  int64_t num_prompt_tokens = 0, num_tokens = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    num_prompt_tokens += static_cast<int64_t>(prompts[i].size());
    num_tokens += int64_t{request.sampling.n} * max_tokens[i];
  }
  const auto check = [](const char* name, int64_t count, int64_t num_top) -> std::optional<ApiError> {
    if (num_top <= kMaxLogprobs || count <= kMaxWideLogprobs / num_top) return std::nullopt;
    return bad_request(name, fmt::format("{} of {} tokens are more than {} in one answer: ask for fewer, or use "
                                         "max_tokens, logprob_token_ids or a stream",
                                         num_top, count, kMaxWideLogprobs));
  };
  if (auto error = check("prompt_logprobs", num_prompt_tokens, request.sampling.prompt_logprobs.value_or(0)))
    return error;
  if (request.stream) return std::nullopt;
  return check("logprobs", num_tokens, request.sampling.logprobs.value_or(0));
}

// Where turns begin: each message of a user, in order.
std::vector<size_t> turn_begins(const Json& messages) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] == "user") begins.push_back(i);
  }
  return begins;
}

bool is_instruction(const Json& message) { return message["role"] == "system" || message["role"] == "developer"; }

// Without the messages before `first`, except instructions.
std::shared_ptr<const Json> without_turns_before(size_t first, const Json& messages) {
  auto kept = std::make_shared<Json>(Json::array());
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i >= first || is_instruction(messages[i])) kept->push_back(messages[i]);
  }
  return kept;
}

// All instructions as the first message, a blank line between two.
Json with_instructions_first(const Json& messages) {
  std::string text;
  Json others = Json::array();
  const auto add = [&](const Json& piece, std::string_view separator) {
    if (!text.empty()) text += separator;
    text += piece.get_ref<const std::string&>();
  };
  for (const Json& message : messages) {
    if (!is_instruction(message)) {
      others.push_back(message);
    } else if (message["content"].is_string()) {
      add(message["content"], "\n\n");
    } else {
      const Json& parts = message["content"];
      for (size_t i = 0; i < parts.size(); ++i) add(parts[i]["text"], i == 0 ? "\n\n" : "\n");
    }
  }
  others.insert(others.begin(), Json{{"role", "system"}, {"content", std::move(text)}});
  return others;
}

bool asks_for_strict(const Json& tools) {
  return std::ranges::any_of(tools, [](const Json& tool) { return tool["function"].value("strict", Json()) == true; });
}

}  // namespace

std::optional<ApiError> fit_prompt(const ApiRequest& request, int max_model_len, int vocab_size,
                                   const std::string& param, std::vector<int32_t>& prompt) {
  truncate(request, max_model_len, prompt);
  if (prompt.empty()) return bad_request(param, fmt::format("{} has no tokens", param));
  for (const int32_t id : prompt) {
    if (id >= 0 && id < vocab_size) continue;
    return bad_request(param, fmt::format("{} contains token id {}, the vocabulary has ids 0 to {}", param, id,
                                          vocab_size - 1));
  }
  return std::nullopt;
}

ApiError submit_error(const Status& status) {
  ApiError error = api_error_of(status);
  if (status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kUnavailable) {
    error.retry_after_seconds = 1;
  }
  return error;
}

ApiError context_length_error(int max_model_len, int64_t num_output_tokens, int64_t num_prompt_tokens,
                              const std::string& param) {
  return bad_request(
      param,
      fmt::format("This model's maximum context length is {} tokens. However, you requested {} output tokens "
                  "and your prompt contains {} input tokens, for a total of {} tokens. Please reduce the "
                  "length of the messages or completion.",
                  max_model_len, num_output_tokens, num_prompt_tokens, num_output_tokens + num_prompt_tokens),
      "context_length_exceeded");
}

Frontend::Frontend(ServingModel model, ServingMetrics* metrics)
    : model_(std::move(model)),
      metrics_(metrics),
      reasoning_format_(format_of(find_reasoning_format(model_.reasoning_parser, template_source(model_)))),
      tool_format_(format_of(find_tool_format(model_.tool_call_parser, template_source(model_)))),
      structured_outputs_([this] { return choosable_token_bytes(model_, markers_of(reasoning_format_, tool_format_)); },
                          model_.vocab_size),
      output_pool_(1) {
  for (int32_t id = 0; id < model_.tokenizer->vocab_size(); ++id) {
    const std::string_view text = model_.tokenizer->token_text(id);
    longest_token_bytes_ = std::max(longest_token_bytes_, text.size());
    if (!model_.tokenizer->is_special(id) || text.empty()) continue;
    has_special_reasoning_markers_ |= is_in_marker(text, markers_of(reasoning_format_, nullptr));
    has_special_tool_markers_ |= is_in_marker(text, markers_of(nullptr, tool_format_));
  }
}

Frontend::~Frontend() = default;

ParseLimits Frontend::parse_limits() const {
  return {.defaults = model_.defaults,
          .vocab_size = model_.vocab_size,
          .max_logprobs = model_.max_logprobs,
          .max_model_len = max_model_len(),
          .return_tokens_as_token_ids = model_.return_tokens_as_token_ids,
          .stream_interval = model_.stream_interval};
}

bool Frontend::serves(std::string_view model_name) const {
  return model_name.empty() || std::find(model_.names.begin(), model_.names.end(), model_name) != model_.names.end();
}

ApiResult<std::shared_ptr<const ChatTemplate>> Frontend::template_of(const ChatRequest& request) const {
  if (!request.chat_template) return model_.chat_template;
  if (!model_.trust_request_chat_template) {
    return not_supported(
        "chat_template",
        "chat_template is not taken from requests: start the server with --trust-request-chat-template");
  }
  if (request.chat_template->size() > kMaxTemplateBytes) {
    return bad_request("chat_template", fmt::format("chat_template has {} bytes, at most {} are taken",
                                                    request.chat_template->size(), kMaxTemplateBytes));
  }
  SpecialTokens special_tokens;
  const auto add = [&](const char* name, const std::optional<SpecialToken>& token) {
    if (token) special_tokens[name] = token->text;
  };
  add("bos_token", model_.tokenizer->bos_token());
  add("eos_token", model_.tokenizer->eos_token());
  add("unk_token", model_.tokenizer->unk_token());
  add("pad_token", model_.tokenizer->pad_token());
  Result<ChatTemplate> parsed = ChatTemplate::parse(*request.chat_template, std::move(special_tokens));
  if (!parsed.ok()) return bad_request("chat_template", parsed.status().message(), "template_error");
  return std::make_shared<const ChatTemplate>(std::move(parsed).value());
}

ApiResult<std::string> Frontend::render_chat(const ChatRequest& request) const {
  const ApiResult<std::shared_ptr<const ChatTemplate>> found = template_of(request);
  if (!found.ok()) return found.error();
  const std::shared_ptr<const ChatTemplate>& chat_template = *found;
  if (!chat_template) {
    return bad_request("messages",
                       "This model has no chat template; use /v1/completions, or start with --chat-template.");
  }
  Json messages = *request.messages;
  if (chat_template->source().find("developer") == std::string::npos) {
    for (Json& message : messages) {
      if (message["role"] == "developer") message["role"] = "system";
    }
  }
  Json kwargs = model_.template_kwargs ? *model_.template_kwargs : Json::object();
  kwargs.update(*request.template_kwargs);
  const auto render = [&](const Json& turns) {
    return chat_template->render({.messages = &turns,
                                  .tools = request.tools.get(),
                                  .documents = request.documents.get(),
                                  .kwargs = &kwargs,
                                  .add_generation_prompt = request.add_generation_prompt,
                                  .continue_final_message = request.continue_final_message});
  };
  const Result<std::string> rendered = render(messages);
  if (rendered.ok()) return *rendered;
  if (request.gathers_instructions && std::ranges::any_of(messages, is_instruction)) {
    const Result<std::string> gathered = render(with_instructions_first(messages));
    if (gathered.ok()) return *gathered;
  }
  return bad_request("messages", rendered.status().message(), "template_error");
}

ApiResult<std::vector<int32_t>> Frontend::encode_prompt(const std::string& text, bool add_special_tokens,
                                                        const std::string& param, bool is_truncated) const {
  // A text this long cannot fit, whatever its tokens are; saying so costs no time.
  const size_t min_tokens = text.size() / longest_token_bytes_;
  if (!is_truncated && min_tokens > static_cast<size_t>(max_model_len())) {
    return context_length_error(max_model_len(), 1, static_cast<int64_t>(min_tokens), param);
  }
  return model_.tokenizer->encode(text, {.add_special_tokens = add_special_tokens});
}

// As few of the oldest turns as make room for the answer are left out; what stays begins with a user's message.
// Found by bisection: a conversation may have thousands of turns.
ApiResult<ChatPrompt> Frontend::prepare_chat(const ChatRequest& request) const {
  ApiResult<ChatPrompt> whole = prepare_whole_chat(request);
  if (!request.drops_old_turns) return whole;
  const auto fits = [&](const ApiResult<ChatPrompt>& prompt) {
    const int64_t room = request.max_tokens.value_or(max_model_len() / kDefaultAnswerShare);
    return prompt.ok() && static_cast<int64_t>((*prompt).token_ids.size()) + room <= max_model_len();
  };
  const bool is_too_long = whole.ok() ? !fits(whole) : whole.error().code == "context_length_exceeded";
  if (!is_too_long) return whole;
  const std::vector<size_t> begins = turn_begins(*request.messages);
  ChatRequest shorter = request;
  ApiResult<ChatPrompt> best = std::move(whole);
  size_t low = 1, high = begins.size();  // the least number of turns to leave out lies in [low, high)
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    shorter.messages = without_turns_before(begins[middle], *request.messages);
    ApiResult<ChatPrompt> prompt = prepare_whole_chat(shorter);
    const bool is_enough = fits(prompt);
    if (is_enough || middle + 1 == begins.size()) best = std::move(prompt);
    if (is_enough) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return best;
}

ApiResult<ChatPrompt> Frontend::prepare_whole_chat(const ChatRequest& request) const {
  ApiResult<std::string> text = render_chat(request);
  if (!text.ok()) return text.error();
  ApiResult<std::vector<int32_t>> token_ids =
      encode_prompt(*text, request.add_special_tokens, "messages", request.truncate_prompt_tokens.has_value());
  if (!token_ids.ok()) return token_ids.error();
  ChatPrompt prompt{.token_ids = std::move(*token_ids)};
  const ReasoningFormat* const reasoning = reasoning_format_;
  const bool has_begun = request.continue_final_message || (reasoning && ends_with_tag(*text, reasoning->end));
  const bool parses_reasoning = reasoning && (reasoning->is_harmony || !has_begun);
  prompt.output = {.reasoning = parses_reasoning ? reasoning : nullptr,
                   .starts_in_reasoning = reasoning && ends_with_tag(*text, reasoning->begin),
                   .tools = request.tool_choice == ToolChoice::kNone ? nullptr : tool_format_,
                   .functions = request.tools,
                   .parallel_tool_calls = request.parallel_tool_calls};
  const bool is_forced = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  if (is_forced) prompt.output.tools = &writable_format(tool_format_ ? *tool_format_ : tool_formats().back());
  const Json& last = request.messages->back();
  if (request.echo && last["role"] == "assistant" && last.contains("content") && last["content"].is_string()) {
    prompt.echo = last["content"].get<std::string>();
  }
  return prompt;
}

ApiResult<std::shared_ptr<Generation>> Frontend::chat(const ChatRequest& request,
                                                      std::shared_ptr<ChatListener> listener) {
  ApiResult<ChatPrompt> prompt = prepare_chat(request);
  if (!prompt.ok()) return prompt.error();
  ApiRequest adjusted = request;
  const ChatOutputOptions& output = prompt->output;
  // The parser needs the markers, also those that are special tokens.
  if ((output.reasoning && has_special_reasoning_markers_) || (output.tools && has_special_tool_markers_)) {
    adjusted.sampling.skip_special_tokens = false;
  }
  if (auto demanded = tool_output(request, output)) adjusted.structured_output = std::move(demanded);
  const bool may_reason = output.reasoning || output.starts_in_reasoning;
  const ChatAnswerForm form{.reasoning = may_reason ? reasoning_format_ : nullptr,
                            .starts_in_reasoning = output.starts_in_reasoning,
                            .max_reasoning_tokens = request.max_reasoning_tokens};
  if (form.max_reasoning_tokens && form.reasoning && form.reasoning->is_harmony) {
    return not_supported("thinking_token_budget", "thinking_token_budget is not supported with harmony's channels");
  }
  if (!request.separate_reasoning) {
    if (output.reasoning && output.reasoning->is_harmony) {
      return not_supported("separate_reasoning", "separate_reasoning must be true with harmony's channels");
    }
    prompt->output.reasoning = nullptr;
    prompt->output.starts_in_reasoning = false;
  }
  auto adapter = std::make_shared<ChatAdapter>(std::move(listener), *prompt, request.sampling.n);
  return generate(adjusted, {std::move(prompt->token_ids)}, std::move(adapter), "messages", form);
}

// The calls that the request demands, or those it allows where a tool is strict; null: none.
std::shared_ptr<const StructuredOutput> Frontend::tool_output(const ChatRequest& request,
                                                              const ChatOutputOptions& output) const {
  if (!output.tools) return nullptr;
  const bool is_auto = request.tool_choice == ToolChoice::kAuto;
  const bool is_written = &writable_format(*output.tools) == output.tools;
  if (is_auto && (!is_written || request.structured_output || !asks_for_strict(*request.tools))) return nullptr;
  auto demanded = std::make_shared<StructuredOutput>();
  demanded->kind = StructuredOutput::Kind::kTools;
  demanded->param = "tools";
  demanded->tool_format = output.tools;
  demanded->tools = {.is_required = !is_auto,
                     .allows_many = request.parallel_tool_calls && request.tool_choice != ToolChoice::kNamed &&
                                    !output.tools->is_harmony};
  demanded->schema = request.tools;
  if (request.tool_choice == ToolChoice::kNamed) {
    auto named = std::make_shared<Json>(Json::array());
    for (const Json& tool : *request.tools) {
      if (tool["function"]["name"] == request.named_function && named->empty()) named->push_back(tool);
    }
    demanded->schema = std::move(named);
  }
  return demanded;
}

ApiResult<std::shared_ptr<const Json>> Frontend::tool_tag(const ChatRequest& request, const ChatPrompt& prompt) const {
  const std::shared_ptr<const StructuredOutput> demanded = tool_output(request, prompt.output);
  if (!demanded) return std::shared_ptr<const Json>();
  const bool is_reasoning = prompt.output.starts_in_reasoning && reasoning_format_;
  Result<Json> tag = tool_structural_tag(*demanded->schema, *demanded->tool_format, demanded->tools,
                                         is_reasoning ? reasoning_format_->end : std::string_view());
  if (!tag.ok()) return not_supported("tools", fmt::format("tools: {}", tag.status().message()));
  return std::make_shared<const Json>(std::move(*tag));
}

ApiResult<std::vector<std::vector<int32_t>>> Frontend::encode_prompts(const CompletionRequest& request) const {
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      ApiResult<std::vector<int32_t>> token_ids =
          encode_prompt(*text, request.add_special_tokens, "prompt", request.truncate_prompt_tokens.has_value());
      if (!token_ids.ok()) return token_ids.error();
      prompts.push_back(std::move(*token_ids));
    } else {
      prompts.push_back(std::get<std::vector<int32_t>>(prompt));
    }
  }
  return prompts;
}

ApiResult<std::shared_ptr<Generation>> Frontend::complete(const CompletionRequest& request,
                                                          std::shared_ptr<GenerationListener> listener) {
  ApiResult<std::vector<std::vector<int32_t>>> prompts = encode_prompts(request);
  if (!prompts.ok()) return prompts.error();
  return generate(request, std::move(*prompts), std::move(listener));
}

// An error where no allowed token may come: there is a form that the tools ask for, or all of them end the answer too
// early.
std::optional<ApiError> Frontend::allow_some_tokens(const ApiRequest& request, GenerationRequest& generation) const {
  if (generation.constraint) {
    return bad_request("allowed_token_ids", "allowed_token_ids and the tools' form of the answer do not go together");
  }
  const auto may_come = [&](int32_t id) {
    const auto is_in = [id](const std::vector<int32_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
    const bool ends = is_in(model_.eos_token_ids);
    if (ends && request.sampling.ignore_eos) return false;
    return request.sampling.min_tokens == 0 || !(ends || is_in(request.sampling.stop_token_ids));
  };
  if (std::ranges::none_of(request.allowed_token_ids, may_come)) {
    return bad_request("allowed_token_ids",
                       "allowed_token_ids must have a token that does not end the answer: min_tokens or ignore_eos "
                       "ask for more");
  }
  generation.constraint = allow_tokens(request.allowed_token_ids, model_.eos_token_ids, model_.vocab_size);
  return std::nullopt;
}

ApiResult<AllowedTokens> Frontend::allowed_tokens(const StructuredOutput& output,
                                                  const std::vector<int32_t>& token_ids) {
  ApiResult<std::shared_ptr<TokenConstraint>> constraint = structured_outputs_.compile_apart(output);
  if (!constraint.ok()) return constraint.error();
  const std::unique_ptr<ConstraintCursor> cursor = (*constraint)->start();
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (cursor->append(token_ids[i]).ok()) continue;
    return bad_request("tokens",
                       fmt::format("the structured output does not allow tokens[{}], id {}", i, token_ids[i]));
  }
  AllowedTokens allowed{.may_end = cursor->may_end()};
  if (cursor->must_end()) return allowed;
  if (const Status status = cursor->prepare_mask(); !status.ok()) return bad_request(output.param, status.message());
  const std::span<const uint32_t> mask = cursor->mask();
  for (int32_t id = 0; id < model_.vocab_size; ++id) {
    if (!mask_allows(mask.data(), id)) continue;
    ++allowed.num_allowed;
    if (allowed.first_ids.size() < kMaxAllowedTold) allowed.first_ids.push_back(id);
  }
  return allowed;
}

ApiResult<std::vector<int>> Frontend::fit_prompts(const ApiRequest& request, std::vector<std::vector<int32_t>>& prompts,
                                                  const std::string& prompt_param) const {
  std::vector<int> all_max_tokens;
  const int limit = max_model_len();
  for (std::vector<int32_t>& prompt : prompts) {
    if (auto error = fit_prompt(request, limit, model_.vocab_size, prompt_param, prompt)) return *error;
    const int64_t num_prompt_tokens = static_cast<int64_t>(prompt.size());
    const int64_t room_or_one = std::max<int64_t>(1, limit - num_prompt_tokens);
    int64_t wanted = std::max(1, request.max_tokens.value_or(1));
    if (request.caps_max_tokens) wanted = std::min(wanted, room_or_one);
    if (num_prompt_tokens + wanted > limit) {
      return context_length_error(limit, wanted, num_prompt_tokens, prompt_param);
    }
    const int room = limit - static_cast<int>(num_prompt_tokens);
    const int max_tokens = request.max_tokens ? static_cast<int>(wanted)
                                              : std::min(room, std::max(1, model_.defaults.max_tokens.value_or(room)));
    if (request.sampling.min_tokens > max_tokens) {
      return bad_request("min_tokens", fmt::format("min_tokens must be in [0, max_tokens = {}], got {}", max_tokens,
                                                   request.sampling.min_tokens));
    }
    all_max_tokens.push_back(max_tokens);
  }
  return all_max_tokens;
}

std::optional<ApiError> Frontend::add_text_biases(const ApiRequest& request, SamplingParams& sampling,
                                                  std::vector<int32_t>& bad_token_ids) const {
  for (const auto& [text, bias] : request.text_biases) {
    for (const int32_t id : model_.tokenizer->encode(text, {.add_special_tokens = false})) {
      if (bias) sampling.logit_bias.emplace_back(id, *bias);
      if (!bias) bad_token_ids.push_back(id);
    }
    if (sampling.logit_bias.size() <= static_cast<size_t>(kMaxLogitBias)) continue;
    return bad_request("logit_bias", fmt::format("logit_bias has more than {} tokens", kMaxLogitBias));
  }
  return std::nullopt;
}

// Requests that have ended are dropped when their number may have doubled, so each costs a constant time.
void Frontend::note_running(const std::string& request_id, const std::shared_ptr<Generation>& run) {
  if (request_id.empty()) return;
  const std::lock_guard lock(running_mutex_);
  running_.emplace(request_id, run);
  if (running_.size() < running_limit_) return;
  std::erase_if(running_, [](const auto& entry) {
    const std::shared_ptr<Generation> each = entry.second.lock();
    return !each || each->has_ended();
  });
  running_limit_ = std::max<size_t>(256, 2 * running_.size());
}

bool Frontend::abort(std::string_view request_id) {
  std::vector<std::shared_ptr<Generation>> found;  // cancelled, and perhaps destroyed, outside the lock
  {
    const std::lock_guard lock(running_mutex_);
    for (const std::string_view prefix : {"", "chatcmpl-", "cmpl-", "generate-tokens-", "msg_", "resp_"}) {
      if (!request_id.starts_with(prefix)) continue;
      const auto [first, last] = running_.equal_range(std::string(request_id.substr(prefix.size())));
      for (auto it = first; it != last; ++it) {
        if (auto run = it->second.lock(); run && !run->has_ended()) found.push_back(std::move(run));
      }
    }
  }
  for (const auto& run : found) run->cancel();
  return !found.empty();
}

std::vector<std::string> Frontend::abort_all() {
  std::vector<std::pair<std::string, std::shared_ptr<Generation>>> found;
  {
    const std::lock_guard lock(running_mutex_);
    for (const auto& [id, weak] : running_) {
      auto run = weak.lock();
      const bool is_other_name = run && run->request().request_id != id;  // of one that is found by its own
      if (run && !is_other_name && !run->has_ended()) found.emplace_back(id, std::move(run));
    }
  }
  std::vector<std::string> ids;
  for (auto& [id, run] : found) {
    run->cancel();
    ids.push_back(std::move(id));
  }
  return ids;
}

ApiResult<std::shared_ptr<Generation>> Frontend::generate(const ApiRequest& request,
                                                          std::vector<std::vector<int32_t>> prompts,
                                                          std::shared_ptr<GenerationListener> listener,
                                                          const std::string& prompt_param, const ChatAnswerForm& form) {
  GenerationRequest generation{.sampling = request.sampling,
                               .eos_token_ids = model_.eos_token_ids,
                               .priority = request.priority,
                               .reuse_scope = request.cache_salt,
                               .stream_interval = request.stream_interval,
                               .speculate = request.speculate,
                               .request_id = request.request_id,
                               .trace_parent = request.trace_parent};
  const int limit = max_model_len();
  ApiResult<std::vector<int>> max_tokens = fit_prompts(request, prompts, prompt_param);
  if (!max_tokens.ok()) return max_tokens.error();
  if (auto error = check_logprobs(request, prompts, *max_tokens)) return *error;
  generation.max_tokens = std::move(*max_tokens);
  if (request.structured_output) {
    StructuredOutput output = *request.structured_output;
    if (form.starts_in_reasoning && form.reasoning) output.reasoning_end = form.reasoning->end;
    // Tags stand in free text, so the model may also reason before it.
    const bool may_open_reasoning = form.reasoning && !form.starts_in_reasoning && !form.reasoning->is_harmony;
    if (output.kind == StructuredOutput::Kind::kStructuralTag && may_open_reasoning) {
      output.reasoning_begin = form.reasoning->begin;
      output.reasoning_end = form.reasoning->end;
    }
    auto constraint = structured_outputs_.compile(output);
    if (!constraint.ok()) return constraint.error();
    generation.constraint = *constraint;
  }
  if (!request.allowed_token_ids.empty()) {
    if (auto error = allow_some_tokens(request, generation)) return *error;
  }
  std::vector<int32_t> bad_token_ids = request.bad_token_ids;
  if (auto error = add_text_biases(request, generation.sampling, bad_token_ids)) return *error;
  if (!request.bad_words.empty() || !bad_token_ids.empty()) {
    std::vector<std::vector<int32_t>> sequences = bad_sequences(request.bad_words, *model_.tokenizer);
    for (const int32_t id : bad_token_ids) sequences.push_back({id});
    const bool may_end = !request.sampling.ignore_eos;
    generation.constraint =
        forbid_sequences(std::move(sequences), may_end ? model_.eos_token_ids : std::vector<int32_t>(),
                         model_.vocab_size, std::move(generation.constraint));
  }
  if (form.max_reasoning_tokens && form.reasoning) {
    generation.constraint = limit_thinking({.max_tokens = *form.max_reasoning_tokens,
                                            .begin = std::string(form.reasoning->begin),
                                            .end = std::string(form.reasoning->end),
                                            .forced_end = model_.reasoning_end,
                                            .has_begun = form.starts_in_reasoning},
                                           *model_.tokenizer, model_.vocab_size, std::move(generation.constraint));
  }
  if (request.beams.width > 0 && generation.constraint) {
    return not_supported("use_beam_search",
                         "use_beam_search must be false where the answer's tokens are bound, by a form that it must "
                         "have, strict or demanded tools, a thinking budget, bad_words or allowed_token_ids");
  }
  generation.beams = request.beams;
  const bool may_relax = model_.relaxed.top_k > 0;
  if (request.relaxed_acceptance.value_or(false) && !may_relax) {
    return not_supported("relaxed_acceptance",
                         "relaxed_acceptance must be false: this server was not started with "
                         "use_relaxed_acceptance_for_thinking in --speculative-config");
  }
  const bool relaxes =
      may_relax && request.relaxed_acceptance.value_or(model_.engine->config().speculative.relaxed_by_default);
  if (relaxes && form.reasoning) {
    generation.relaxed = model_.relaxed;
    generation.relaxed.has_begun = form.starts_in_reasoning;
  }
  // Texts of together more than a context are cut: an answer is no longer.
  size_t reference_room = model_.engine->config().speculative.method == SpeculativeMethod::kReference ? static_cast<size_t>(limit) : 0;
  for (const std::string& text : request.speculative_reference) {
    if (reference_room == 0) break;
    const std::string_view piece = std::string_view(text).substr(0, reference_room * longest_token_bytes_);
    std::vector<int32_t> token_ids = model_.tokenizer->encode(piece, {.add_special_tokens = false});
    if (token_ids.size() > reference_room) token_ids.resize(reference_room);
    reference_room -= token_ids.size();
    generation.speculative_reference.push_back(std::move(token_ids));
  }
  generation.prompts = std::move(prompts);
  const RequestId first_id = next_id_.fetch_add(generation.prompts.size());
  auto run =
      std::make_shared<Generation>(Generation::Context{.engine = model_.engine,
                                                       .tokenizer = *model_.tokenizer,
                                                       .output_pool = output_pool_,
                                                       .metrics = metrics_,
                                                       .tracer = model_.tracer,
                                                       .model_name = model_.names.front(),
                                                       .next_id = next_id_,
                                                       .vocab_size = model_.vocab_size},
                                   std::move(generation), first_id, std::move(listener));
  const Status status = run->submit();
  if (!status.ok()) return submit_error(status);
  note_running(request.request_id, run);
  note_running(request.answer_id, run);
  return run;
}

}  // namespace spate

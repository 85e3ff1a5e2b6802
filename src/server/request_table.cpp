#include "server/request_table.h"

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "server/api_request.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using enum FieldType;

constexpr uint32_t kBoth = kGenerationRequests;
constexpr uint32_t kAnswers = kBoth | kMessagesRequest | kResponsesRequest;
constexpr uint32_t kConversation = kChatRequest | kTokenizeRequest;
constexpr uint32_t kMessages = kMessagesRequest | kCountTokensRequest;
constexpr uint32_t kScores = kScoreRequest | kRerankRequest;
constexpr uint32_t kVectors = kEmbeddingsRequest | kScores;
constexpr uint32_t kAll = kBoth | kTokenizeRequest | kDetokenizeRequest | kMessages | kResponsesRequest |
                          kTokensRequest | kVectors | kAllowedTokensRequest;
constexpr uint32_t kAnswered = kBoth | kResponsesRequest;
constexpr uint32_t kFormed = kBoth | kAllowedTokensRequest;  // may say what form an answer has

constexpr auto kNoEffect = FieldUse::kNoEffect;
constexpr auto kUnsupported = FieldUse::kUnsupported;
constexpr auto kRead = FieldUse::kRead;

// By subject; within one, by how often it is asked for.
const RequestField kFields[] = {
    // What is asked.
    {"model", kAll, kString, kRead, "OpenAI", "A served name; unknown names are 404.", "the served model"},
    {.name = "messages",
     .kinds = kConversation,
     .type = kArray,
     .dialect = "OpenAI",
     .help = "Roles system, developer, user, assistant, tool, function; content as text or text parts.",
     .required_by = kChatRequest},
    {"prompt", kCompletionRequest | kTokenizeRequest, kAny, kRead, "OpenAI",
     "A string, an array of strings, of token ids, or of arrays of token ids; /tokenize takes a string."},
    {"prompt_token_ids", kCompletionRequest, kArray, kRead, "FastDeploy", "As `prompt` of token ids."},
    {"content", kTokenizeRequest | kDetokenizeRequest, kAny, kRead, "llama-server",
     "As `prompt`; the answer is llama-server's."},
    {"tokens", kDetokenizeRequest, kTokenIds, kRead, "vLLM", "The ids to turn into text."},
    {"tokens", kAllowedTokensRequest, kTokenIds, kRead, "Spate", "The answer so far.", "none"},
    {"prompt_embeds", kBoth, kAny, kUnsupported, "vLLM", "Prompts are text or token ids."},
    {"suffix", kCompletionRequest, kAny, kRead, "OpenAI",
     "A text is refused: no model here fills in. FastDeploy's object of extra parameters has no effect."},
    {"documents", kConversation, kArray, kRead, "vLLM", "For the chat template."},
    // The chat template.
    {"add_generation_prompt", kConversation, kBoolean, kRead, "vLLM", "End the prompt where the assistant begins.",
     "true"},
    {"continue_final_message", kConversation, kBoolean, kRead, "vLLM", "The prompt ends inside the last message.",
     "false"},
    {"add_special_tokens", kBoth | kTokenizeRequest | kVectors, kBoolean, kRead, "vLLM",
     "Add BOS as the tokenizer has it.", "false for chats, true for texts"},
    {"add_special", kTokenizeRequest, kBoolean, kRead, "llama-server", "As `add_special_tokens`.", "false"},
    {"chat_template_kwargs", kConversation | kResponsesRequest, kObject, kRead, "vLLM",
     "Variables of the chat template (enable_thinking ...)."},
    {"reasoning_effort", kConversation, kString, kRead, "OpenAI",
     "Variable of the chat template; `none` also sets enable_thinking to false."},
    {"chat_template", kConversation, kString, kRead, "vLLM",
     "A template in place of the server's; 400 without `--trust-request-chat-template`.", "the server's"},
    {"enable_thinking", kConversation, kBoolean, kRead, "FastDeploy",
     "As `chat_template_kwargs.enable_thinking`, which wins."},
    {"echo", kBoth, kBoolean, kRead, "OpenAI", "Repeat the prompt (chat: the last assistant message) in front.",
     "false"},
    {"truncate_prompt_tokens", kBoth | kVectors, kInteger, kRead, "vLLM",
     "Keep so many tokens of the prompt; -1: as many as leave room for max_tokens.", "all", -1, INT32_MAX},
    {"truncation_side", kBoth | kVectors, kString, kRead, "vLLM", "`left` drops the beginning, `right` the end.",
     "left"},
    // Tools.
    {"tools", kConversation | kMessages | kResponsesRequest, kArray, kRead, "OpenAI",
     "Functions that the model may call."},
    {"tool_choice", kConversation, kAny, kRead, "OpenAI", "none, auto, required, or an object that names a function.",
     "auto with tools, else none"},
    {"parallel_tool_calls", kConversation | kResponsesRequest, kBoolean, kRead, "OpenAI", "false: at most one call.",
     "true"},
    {"functions", kChatRequest, kArray, kUnsupported, "OpenAI", "Deprecated: use `tools`."},
    {"function_call", kChatRequest, kAny, kUnsupported, "OpenAI", "Deprecated: use `tool_choice`."},
    // How tokens are chosen.
    {"temperature", kBoth | kMessagesRequest | kResponsesRequest, kNumber, kRead, "OpenAI",
     "0 is greedy, and all below 1e-5.", "the model's, else 1", 0, 2},
    {"top_p", kBoth | kMessagesRequest | kResponsesRequest, kNumber, kRead, "OpenAI", "Nucleus; 0 keeps one token.",
     "the model's, else 1", 0, 1},
    {"top_k", kAnswered | kMessagesRequest, kInteger, kRead, "vLLM", "0 or -1: off.", "the model's, else off", -1,
     INT32_MAX},
    {"min_p", kAnswered, kNumber, kRead, "vLLM", "Least share of the best token's probability.", "the model's, else 0",
     0, 1},
    {"presence_penalty", kAnswered, kNumber, kRead, "OpenAI", "On tokens that were generated.", "0", -2, 2},
    {"frequency_penalty", kAnswered, kNumber, kRead, "OpenAI", "On tokens, by how often they were generated.", "0", -2,
     2},
    {"repetition_penalty", kAnswered, kNumber, kRead, "vLLM", "On tokens of prompt and output.", "the model's, else 1",
     1e-4, 1e4},
    {"seed", kAnswered, kInteger, kRead, "OpenAI", "Makes sampling repeatable.", "drawn"},
    {"logit_bias", kAnswered, kObject, kRead, "OpenAI", "Token ids to values in [-100, 100]."},
    {"n", kBoth, kInteger, kRead, "OpenAI",
     "Answers to a prompt. Where only the model's default is greedy, n above 1 samples at temperature 1.", "1", 1, 128},
    {"best_of", kBoth, kInteger, kRead, "OpenAI",
     "1 or `n`: candidates that are not returned are not generated; with `use_beam_search` the number of beams.", "n",
     1, 128},
    {"use_beam_search", kBoth, kBoolean, kRead, "vLLM",
     "The `n` most probable answers of `best_of` beams; not in streams. Temperature, top_p, top_k, min_p and seed have "
     "no effect then; penalties, biases and forms of the answer are refused.",
     "false"},
    {"length_penalty", kBoth, kNumber, kRead, "vLLM",
     "Of a beam search: log-probabilities count over (tokens of prompt and answer) to this power.", "1", -10, 10},
    {"early_stopping", kBoth, kAny, kRead, "vLLM",
     "Of a beam search: true ends it with as many complete answers as beams, false when answers as long as now cannot "
     "be better, \"never\" when none can be.",
     "\"never\""},
    {"bad_words", kBoth, kArray, kRead, "vLLM",
     "Up to 1024 texts whose tokens never come one behind the other, with or without a space before them; other tokens "
     "of the same text may."},
    {"bad_words_token_ids", kBoth, kTokenIds, kRead, "FastDeploy", "Ids that never come."},
    {"allowed_token_ids", kBoth, kTokenIds, kRead, "vLLM",
     "The answer has no other tokens, the end token included; not together with a form that the answer must have."},
    {"logits_processors", kBoth, kArray, kUnsupported, "vLLM", "No code of a request is run."},
    {"logits_processors_args", kBoth, kAny, kUnsupported, "FastDeploy", "No code of a request is run."},
    {"repetition_detection", kBoth, kObject, kRead, "vLLM",
     "Ends an answer whose last tokens are one pattern again and again: max_pattern_size tokens at most (0: off), "
     "min_pattern_size at least, min_count times. stop_reason is then repetition_detected.",
     "as --repetition-detection says"},
    {.name = "typical_p",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `top_p` or `min_p`.",
     .neutral = 1},
    {.name = "mirostat",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `top_p` or `min_p`.",
     .neutral = 0},
    {.name = "dry_multiplier",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use the penalties.",
     .neutral = 0},
    {.name = "xtc_probability",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Not built.",
     .neutral = 0},
    {.name = "dynatemp_range",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Not built.",
     .neutral = 0},
    {.name = "top_n_sigma",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Not built.",
     .neutral = -1},
    {"repeat_penalty", kBoth, kNumber, kRead, "llama-server", "As `repetition_penalty`.", "1", 1e-4, 1e4},
    // When it ends.
    {"max_completion_tokens", kChatRequest, kInteger, kRead, "OpenAI",
     "Most tokens of the answer; wins over max_tokens.", "what the context leaves", 1, INT32_MAX},
    {"max_tokens", kChatRequest, kInteger, kRead, "OpenAI", "Most tokens of the answer.", "what the context leaves", 1,
     INT32_MAX},
    {"max_tokens", kCompletionRequest, kInteger, kRead, "OpenAI",
     "Most tokens of the answer; 0 with echo scores the prompt.", "16", 0, INT32_MAX},
    {"max_completion_tokens", kCompletionRequest, kInteger, kRead, "OpenAI", "As `max_tokens`, which wins.", "16", 0,
     INT32_MAX},
    {.name = "min_tokens",
     .kinds = kBoth,
     .type = kInteger,
     .dialect = "vLLM",
     .help = "No end and no stop string before so many tokens.",
     .default_text = "0",
     .low = 0,
     .high_limit = &ParseLimits::max_model_len},
    {"stop", kAnswered, kStrings, kRead, "OpenAI", "Up to 64 texts that end the answer."},
    {"stop_token_ids", kBoth, kTokenIds, kRead, "vLLM", "Ids that end the answer."},
    {"ignore_eos", kAnswered, kBoolean, kRead, "vLLM", "Go on after the end token.", "false"},
    {"include_stop_str_in_output", kAnswered, kBoolean, kRead, "vLLM", "Show the stop string.", "false"},
    {"thinking_token_budget", kChatRequest | kResponsesRequest, kInteger, kRead, "vLLM",
     "Most tokens of the reasoning: then its end is written for the model. -1: no limit. A model that does not reason "
     "keeps every budget.",
     "no limit", -1, INT32_MAX},
    {"reasoning_max_tokens", kChatRequest, kInteger, kRead, "FastDeploy", "As `thinking_token_budget`, which wins.",
     "no limit", -1, INT32_MAX},
    {"reasoning_budget_tokens", kChatRequest, kInteger, kRead, "llama-server",
     "As `thinking_token_budget`, which wins.", "no limit", -1, INT32_MAX},
    {"thinking_token_budget", kCompletionRequest, kAny, kUnsupported, "vLLM", "A text has no reasoning; use a chat."},
    {"reasoning_max_tokens", kCompletionRequest, kAny, kUnsupported, "FastDeploy",
     "A text has no reasoning; use a chat."},
    {"response_max_tokens", kBoth, kAny, kUnsupported, "FastDeploy", "Use `max_tokens`."},
    // The form of the answer.
    {"response_format", kFormed, kObject, kRead, "OpenAI", "text, json_object, json_schema or structural_tag."},
    {"structured_outputs", kFormed | kResponsesRequest, kObject, kRead, "vLLM",
     "One of json, regex, choice, grammar, json_object, structural_tag."},
    {"structural_tag", kFormed, kAny, kRead, "FastDeploy", "As structured_outputs.structural_tag."},
    {"guided_json", kFormed, kAny, kRead, "FastDeploy", "As structured_outputs.json."},
    {"guided_regex", kFormed, kString, kRead, "FastDeploy", "As structured_outputs.regex."},
    {"guided_choice", kFormed, kAny, kRead, "FastDeploy", "As structured_outputs.choice."},
    {"guided_grammar", kFormed, kString, kRead, "FastDeploy", "As structured_outputs.grammar."},
    {"guided_json_object", kFormed, kBoolean, kRead, "FastDeploy", "As structured_outputs.json_object."},
    {"guided_whitespace_pattern", kFormed, kString, kRead, "vLLM", "As structured_outputs.whitespace_pattern."},
    {"guided_decoding_backend", kBoth, kString, kNoEffect, "vLLM", "There is one engine for structured output."},
    {"json_schema", kFormed, kAny, kRead, "llama-server", "As structured_outputs.json."},
    {"grammar", kFormed, kString, kRead, "llama-server", "As structured_outputs.grammar."},
    {"speculate", kAnswers, kBoolean, kRead, "Spate", "false: no drafts, whatever `--speculative-config` says.", "true"},
    {"relaxed_acceptance", kAnswers, kBoolean, kRead, "Spate",
     "Whether drafts that the model only nearly chose may stand in the reasoning; true where `--speculative-config` "
     "allows it.",
     "as `--speculative-config` says"},
    {"speculative_reference", kAnswers, kStrings, kRead, "Spate",
     "Texts that the answer may repeat; for the method `reference`.", "the prompt"},
    {"skip_special_tokens", kAnswered, kBoolean, kRead, "vLLM", "Special tokens have no text.", "true"},
    {"spaces_between_special_tokens", kBoth, kBoolean, kRead, "vLLM", "As vLLM.", "true"},
    {"include_reasoning", kChatRequest, kBoolean, kRead, "vLLM",
     "Tell the reasoning, as reasoning and reasoning_content.", "true"},
    // Streams.
    {"stream", kBoth | kMessagesRequest | kResponsesRequest, kBoolean, kRead, "OpenAI", "Server-sent events.", "false"},
    {"stream_options", kBoth, kObject, kRead, "OpenAI", "include_usage, continuous_usage_stats; only with `stream`."},
    {"stream_interval", kBoth, kInteger, kRead, "vLLM", "Tokens of a chunk; the first comes at once.", "1", 1,
     INT32_MAX},
    {"max_streaming_response_tokens", kBoth, kInteger, kRead, "FastDeploy", "As `stream_interval`.", "1", 1, INT32_MAX},
    // What is told of the tokens.
    {"logprobs", kBoth, kAny, kRead, "OpenAI",
     "Chat: true or false. Completions: so many alternatives of each token; -1: the whole vocabulary, with "
     "--max-logprobs -1."},
    {.name = "top_logprobs",
     .kinds = kChatRequest,
     .type = kInteger,
     .dialect = "OpenAI",
     .help = "Alternatives of each token; needs `logprobs`. -1: the whole vocabulary, with --max-logprobs -1.",
     .default_text = "0",
     .low = -1,
     .high_limit = &ParseLimits::max_logprobs},
    {.name = "prompt_logprobs",
     .kinds = kBoth,
     .type = kInteger,
     .dialect = "vLLM",
     .help = "Alternatives of each prompt token; not in streams. -1: the whole vocabulary, with --max-logprobs -1.",
     .low = -1,
     .high_limit = &ParseLimits::max_logprobs},
    {"logprob_token_ids", kBoth, kTokenIds, kRead, "vLLM",
     "Up to 1024 ids whose log-probabilities each token has in place of the most probable ones; a chat needs "
     "`logprobs`, without `top_logprobs`."},
    {"return_token_ids", kBoth, kBoolean, kRead, "vLLM", "token_ids of answers and prompt.", "false"},
    {"return_tokens_as_token_ids", kBoth, kBoolean, kRead, "vLLM", "Logprobs name tokens as `token_id:N`.", "false"},
    {"with_pieces", kTokenizeRequest, kBoolean, kRead, "llama-server",
     "Each of `tokens` as an object of `id` and `piece`, its text, or its bytes where they are no text.", "false"},
    {"parse_special", kTokenizeRequest, kBoolean, kRead, "llama-server", "Only true.", "true"},
    {"return_token_strs", kTokenizeRequest, kBoolean, kRead, "vLLM", "Also the text of each token.", "false"},
    {"return_prompt_text", kBoth, kBoolean, kUnsupported, "vLLM", "Use /detokenize, or `echo`."},
    {"return_token_offsets", kBoth, kBoolean, kUnsupported, "vLLM", "Completions with logprobs tell text_offset."},
    {"collect_metrics", kBoth, kBoolean, kRead, "FastDeploy",
     "The answer, or the last chunk of a stream, tells its times in `metrics`, by vLLM's names.", "false"},
    // Scheduling.
    {"priority", kAnswered | kTokensRequest | kVectors, kInteger, kRead, "vLLM", "Smaller runs first.", "0", INT32_MIN,
     INT32_MAX},
    {"cache_salt", kAnswered | kTokensRequest | kVectors, kString, kRead, "vLLM",
     "The prefix cache is shared among requests of one salt only."},
    {"request_id", kAnswered | kTokensRequest | kVectors, kString, kRead, "vLLM",
     "At most 128 bytes; X-Request-Id wins.", "drawn"},
    {"kv_transfer_params", kAnswered | kTokensRequest, kAny, kUnsupported, "vLLM",
     "Prefill and decode run in one process."},
    {"vllm_xargs", kAnswered, kAny, kUnsupported, "vLLM", "Extra arguments of plug-ins; there are none."},
    // Fields of other servers. Those that ask for nothing with their default are taken with it.
    {"mm_processor_kwargs", kAnswered, kAny, kUnsupported, "vLLM", "Models read text only."},
    {"media_io_kwargs", kAnswered, kAny, kUnsupported, "vLLM", "Models read text only."},
    {"flat_logprobs", kBoth, kBoolean, kUnsupported, "vLLM", "Logprobs have one form."},
    {"extra_args", kBoth, kAny, kUnsupported, "vLLM", "Extra arguments of plug-ins; there are none."},
    {"skip_reading_prefix_cache", kBoth, kBoolean, kUnsupported, "vLLM", "Use a `cache_salt` of its own."},
    {.name = "detokenize",
     .kinds = kBoth,
     .type = kBoolean,
     .use = kUnsupported,
     .dialect = "vLLM",
     .help = "For token ids alone use /inference/v1/generate.",
     .neutral = 1},
    {"temp_scaled_logprobs", kBoth, kBoolean, kUnsupported, "FastDeploy",
     "Logprobs are those of the model's distribution."},
    {"top_p_normalized_logprobs", kBoth, kBoolean, kUnsupported, "FastDeploy",
     "Logprobs are those of the model's distribution."},
    {"include_draft_logprobs", kBoth, kBoolean, kUnsupported, "FastDeploy", "Drafts have no logprobs."},
    {"disable_chat_template", kChatRequest, kBoolean, kUnsupported, "FastDeploy", "Use /v1/completions."},
    {"completion_token_ids", kBoth, kAny, kUnsupported, "FastDeploy",
     "Use `continue_final_message`, or token ids as `prompt` of /v1/completions."},
    {"disaggregate_info", kBoth, kAny, kUnsupported, "FastDeploy", "Prefill and decode run in one process."},
    {"mm_hashes", kBoth, kAny, kUnsupported, "FastDeploy", "Models read text only."},
    {"trace_context", kBoth, kAny, kUnsupported, "FastDeploy", "Use the header traceparent."},
    {"rid", kBoth, kAny, kUnsupported, "SGLang", "Use `request_id`."},
    {"regex", kBoth, kAny, kUnsupported, "SGLang", "Use `structured_outputs.regex`."},
    {"ebnf", kBoth, kAny, kUnsupported, "SGLang", "Use `structured_outputs.grammar`."},
    {"stop_regex", kBoth, kAny, kUnsupported, "SGLang", "Use `stop`."},
    {"no_stop_trim", kBoth, kBoolean, kUnsupported, "SGLang", "Use `include_stop_str_in_output`."},
    {"lora_path", kBoth, kAny, kUnsupported, "SGLang", "There are no adapters."},
    {"session_params", kBoth, kAny, kUnsupported, "SGLang", "Equal beginnings are found without it."},
    {"extra_key", kBoth, kAny, kUnsupported, "SGLang", "Use `cache_salt`."},
    {"custom_logit_processor", kBoth, kAny, kUnsupported, "SGLang", "No code of a request is run."},
    {"custom_params", kBoth, kAny, kUnsupported, "SGLang", "No code of a request is run."},
    {"return_hidden_states", kBoth, kBoolean, kUnsupported, "SGLang", "Use /v1/embeddings."},
    {"input_ids", kBoth, kAny, kUnsupported, "SGLang", "Use token ids as `prompt` of /v1/completions."},
    {.name = "separate_reasoning",
     .kinds = kBoth,
     .type = kBoolean,
     .use = kUnsupported,
     .dialect = "SGLang",
     .help = "Reasoning is told apart unless the server runs with --reasoning-parser none.",
     .neutral = 1},
    {.name = "stream_reasoning",
     .kinds = kBoth,
     .type = kBoolean,
     .use = kUnsupported,
     .dialect = "SGLang",
     .help = "Reasoning is streamed as it comes.",
     .neutral = 1},
    {"bootstrap_host", kBoth, kAny, kUnsupported, "SGLang", "Prefill and decode run in one process."},
    {"bootstrap_room", kBoth, kAny, kUnsupported, "SGLang", "Prefill and decode run in one process."},
    {"reasoning", kChatRequest, kAny, kUnsupported, "OpenRouter", "Use `reasoning_effort` or `thinking_token_budget`."},
    {"thinking", kChatRequest, kAny, kUnsupported, "Anthropic", "Use `enable_thinking`, or /v1/messages."},
    {.name = "top_a",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `top_p` or `min_p`.",
     .neutral = 0},
    {.name = "tfs_z",
     .kinds = kBoth,
     .type = kNumber,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `top_p` or `min_p`.",
     .neutral = 1},
    {"samplers", kBoth, kAny, kUnsupported, "llama-server", "The order of the samplers is fixed."},
    {.name = "min_keep",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `top_k`.",
     .neutral = 0},
    {.name = "n_predict",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `max_tokens`.",
     .neutral = -1},
    {.name = "n_probs",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `logprobs`.",
     .neutral = 0},
    {"post_sampling_probs", kBoth, kBoolean, kUnsupported, "llama-server",
     "Logprobs are those of the model's distribution."},
    {.name = "n_keep",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `truncate_prompt_tokens`.",
     .neutral = 0},
    {.name = "n_discard",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `truncate_prompt_tokens`.",
     .neutral = 0},
    {.name = "repeat_last_n",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Penalties look at all tokens.",
     .neutral = -1},
    {.name = "t_max_predict_ms",
     .kinds = kBoth,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Use `max_tokens`.",
     .neutral = 0},
    {"response_fields", kBoth, kAny, kUnsupported, "llama-server", "Answers have one form."},
    {"return_progress", kBoth, kBoolean, kUnsupported, "llama-server", "Streams begin with the first token."},
    {"return_tokens", kBoth, kBoolean, kUnsupported, "llama-server", "Use `return_token_ids`."},
    {"timings_per_token", kBoth, kBoolean, kUnsupported, "llama-server", "Use `collect_metrics`."},
    {.name = "parse_tool_calls",
     .kinds = kBoth,
     .type = kBoolean,
     .use = kUnsupported,
     .dialect = "llama-server",
     .help = "Calls are read wherever a request has `tools`.",
     .neutral = 1},
    {"image_data", kBoth, kAny, kUnsupported, "llama-server", "Models read text only."},
    {"lora", kBoth, kAny, kUnsupported, "llama-server", "There are no adapters."},
    {"grammar_lazy", kBoth, kBoolean, kUnsupported, "llama-server", "Use a structural tag."},
    {"mirostat_tau", kBoth, kAny, kNoEffect, "llama-server", "Only with `mirostat`, which is refused."},
    {"mirostat_eta", kBoth, kAny, kNoEffect, "llama-server", "Only with `mirostat`, which is refused."},
    {"dry_base", kBoth, kAny, kNoEffect, "llama-server", "Only with `dry_multiplier`, which is refused."},
    {"dry_allowed_length", kBoth, kAny, kNoEffect, "llama-server", "Only with `dry_multiplier`, which is refused."},
    {"dry_penalty_last_n", kBoth, kAny, kNoEffect, "llama-server", "Only with `dry_multiplier`, which is refused."},
    {"dry_sequence_breakers", kBoth, kAny, kNoEffect, "llama-server", "Only with `dry_multiplier`, which is refused."},
    {"xtc_threshold", kBoth, kAny, kNoEffect, "llama-server", "Only with `xtc_probability`, which is refused."},
    {"dynatemp_exponent", kBoth, kAny, kNoEffect, "llama-server", "Only with `dynatemp_range`, which is refused."},
    {"id_slot", kBoth, kAny, kNoEffect, "llama-server", "Equal beginnings are found without it."},
    // Media.
    {"modalities", kChatRequest, kArray, kRead, "OpenAI", "[\"text\"]: models make text only."},
    {"audio", kChatRequest, kAny, kUnsupported, "OpenAI", "Models make text only."},
    // Matters of OpenAI's service.
    {"user", kBoth | kResponsesRequest | kVectors, kAny, kNoEffect, "OpenAI", "Nothing is kept by user."},
    {"safety_identifier", kBoth | kResponsesRequest, kAny, kNoEffect, "OpenAI", "Nothing is kept by user."},
    {"service_tier", kBoth | kMessagesRequest | kResponsesRequest, kAny, kNoEffect, "OpenAI",
     "There is one tier; see `priority`."},
    {"store", kBoth, kAny, kNoEffect, "OpenAI", "Chats and completions are not kept."},
    {"metadata", kBoth, kAny, kNoEffect, "OpenAI", "Chats and completions are not kept."},
    {"prompt_cache_key", kBoth | kResponsesRequest, kAny, kNoEffect, "OpenAI",
     "Equal beginnings are found without it; see `cache_salt`."},
    {"prompt_cache_retention", kBoth | kResponsesRequest, kAny, kNoEffect, "OpenAI", "The cache keeps what fits."},
    {"cache_prompt", kBoth, kAny, kNoEffect, "llama-server", "--no-enable-prefix-caching turns the cache off."},
    {"prediction", kBoth, kAny, kNoEffect, "OpenAI", "It would change speed only."},
    {"verbosity", kChatRequest, kAny, kNoEffect, "OpenAI", "Models here know no verbosity."},
    {"web_search_options", kChatRequest, kAny, kNoEffect, "OpenAI", "There is no web search."},
    {"moderation", kBoth, kAny, kNoEffect, "OpenAI", "There is no moderation."},
    // Anthropic's Messages.
    {.name = "messages",
     .kinds = kMessages,
     .type = kArray,
     .dialect = "Anthropic",
     .help = "Roles user and assistant; text, thinking, tool_use and tool_result blocks.",
     .required_by = kMessages},
    {"system", kMessages, kAny, kRead, "Anthropic", "A string or text blocks."},
    {"max_tokens", kMessagesRequest, kInteger, kRead, "Anthropic", "Most tokens of the answer.",
     "what the context leaves", 1, INT32_MAX},
    {"stop_sequences", kMessagesRequest, kArray, kRead, "Anthropic", "Up to 64 texts that end the answer."},
    {"tool_choice", kMessages, kObject, kRead, "Anthropic", "type auto, any, none, or tool with a name.",
     "auto with tools"},
    {"thinking", kMessages, kObject, kRead, "Anthropic",
     "enabled or disabled: variable enable_thinking of the chat template. budget_tokens: most tokens of the thinking."},
    {"metadata", kMessages, kAny, kNoEffect, "Anthropic", "Nothing is kept by user."},
    {"cache_control", kMessages, kAny, kNoEffect, "Anthropic", "Equal beginnings are found without it."},
    {"mcp_servers", kMessages, kArray, kUnsupported, "Anthropic", "This server runs no tools."},
    {"container", kMessages, kAny, kUnsupported, "Anthropic", "This server runs no tools."},
    {"context_management", kMessages, kObject, kRead, "Anthropic",
     "edits of type clear_thinking, which change nothing: the chat template says what stays of earlier thinking."},
    {"output_config", kMessages, kObject, kRead, "Anthropic",
     "format of type json_schema; effort, as reasoning_effort."},
    {"output_format", kMessages, kObject, kRead, "Anthropic", "As output_config.format."},
    {"diagnostics", kMessages, kAny, kNoEffect, "Anthropic", "There are none."},
    {"inference_geo", kMessages, kAny, kNoEffect, "Anthropic", "Inference runs here."},
    {"speed", kMessages, kAny, kNoEffect, "Anthropic", "There is one."},
    {"user_profile_id", kMessages, kAny, kNoEffect, "Anthropic", "Nothing is kept by user."},
    {"workspace_id", kMessages, kAny, kNoEffect, "Anthropic", "Nothing is kept by workspace."},
    // Responses.
    {.name = "input",
     .kinds = kResponsesRequest,
     .type = kAny,
     .dialect = "OpenAI",
     .help = "A string, or items: messages, function_call, function_call_output, reasoning.",
     .required_by = kResponsesRequest},
    {"instructions", kResponsesRequest, kString, kRead, "OpenAI",
     "The system message; not kept for the next response."},
    {"previous_response_id", kResponsesRequest, kString, kRead, "OpenAI",
     "A stored response whose conversation goes on."},
    {"store", kResponsesRequest, kBoolean, kRead, "OpenAI", "Keep the response: the last 1000, 64 MiB of them.",
     "true"},
    {"background", kResponsesRequest, kBoolean, kRead, "OpenAI", "Answer at once; GET and cancel by id.", "false"},
    {"max_output_tokens", kResponsesRequest, kInteger, kRead, "OpenAI", "Most tokens of the answer.",
     "what the context leaves", 1, INT32_MAX},
    {"tool_choice", kResponsesRequest, kAny, kRead, "OpenAI", "none, auto, required, or {type: function, name}.",
     "auto with tools, else none"},
    {"text", kResponsesRequest, kObject, kRead, "OpenAI", "format: text, json_object or json_schema."},
    {"reasoning", kResponsesRequest, kObject, kRead, "OpenAI", "effort, as reasoning_effort of chats."},
    {"metadata", kResponsesRequest, kObject, kRead, "OpenAI", "Told back."},
    {"truncation", kResponsesRequest, kString, kRead, "OpenAI", "disabled.", "disabled"},
    {"include", kResponsesRequest, kArray, kNoEffect, "OpenAI", "What there is is always told."},
    {"stream_options", kResponsesRequest, kObject, kNoEffect, "OpenAI", "Usage is always told."},
    {.name = "top_logprobs",
     .kinds = kResponsesRequest,
     .type = kInteger,
     .use = kUnsupported,
     .dialect = "OpenAI",
     .help = "Use /v1/chat/completions.",
     .neutral = 0},
    {"max_tool_calls", kResponsesRequest, kAny, kUnsupported, "OpenAI", "This server runs no tools."},
    {"prompt", kResponsesRequest, kAny, kUnsupported, "OpenAI", "There are no stored prompts."},
    {"conversation", kResponsesRequest, kAny, kUnsupported, "OpenAI", "Use previous_response_id."},
    {"enable_response_messages", kResponsesRequest, kBoolean, kUnsupported, "vLLM",
     "Use /v1/chat/completions/render, or return_token_ids of chats."},
    {"previous_input_messages", kResponsesRequest, kAny, kUnsupported, "vLLM", "Use previous_response_id, or input."},
    {"previous_response", kResponsesRequest, kAny, kUnsupported, "vLLM", "Use previous_response_id, or input."},
    // Tokens in, tokens out.
    {.name = "token_ids",
     .kinds = kTokensRequest,
     .type = kTokenIds,
     .dialect = "vLLM",
     .help = "The prompt.",
     .required_by = kTokensRequest},
    {"sampling_params", kTokensRequest, kObject, kRead, "vLLM",
     "Fields of completions by vLLM's names: temperature, max_tokens ..."},
    {"stream", kTokensRequest, kBoolean, kUnsupported, "vLLM", "Use /v1/completions with return_token_ids."},
    // Embeddings.
    {.name = "input",
     .kinds = kEmbeddingsRequest,
     .type = kAny,
     .dialect = "OpenAI",
     .help = "A string, an array of strings, of token ids, or of arrays of token ids; at most 2048.",
     .required_by = kEmbeddingsRequest},
    {"encoding_format", kEmbeddingsRequest, kString, kRead, "OpenAI", "`float`, or `base64` of little-endian float32.",
     "float"},
    {"dimensions", kEmbeddingsRequest, kInteger, kRead, "OpenAI",
     "The first so many numbers of the vector, brought to length 1 again; at most the model's hidden size.", "all", 1,
     INT32_MAX},
    {"normalize", kEmbeddingsRequest, kBoolean, kRead, "vLLM", "Bring the vector to length 1.",
     "as the model's files or --pooler-config say"},
    {"use_activation", kEmbeddingsRequest, kBoolean, kRead, "vLLM", "As `normalize`.", "as `normalize`"},
    {"messages", kEmbeddingsRequest, kArray, kUnsupported, "vLLM", "Use `input`; /tokenize makes token ids of a chat."},
    {"embed_dtype", kEmbeddingsRequest, kString, kRead, "vLLM", "float32.", "float32"},
    {"endianness", kEmbeddingsRequest, kString, kRead, "vLLM", "native or little.", "native"},
    {"features", kTokensRequest, kAny, kUnsupported, "vLLM", "Models read text only."},
    {"stream_options", kTokensRequest, kAny, kUnsupported, "vLLM", "Use /v1/completions with return_token_ids."},
    // Ends of requests.
    {"request_ids", kAbortRequest, kArray, kRead, "vLLM",
     "Ids as requests gave them in `request_id` or X-Request-Id, or as their answers have them."},
    {"req_ids", kAbortRequest, kArray, kRead, "FastDeploy", "As `request_ids`."},
    {"abort_all", kAbortRequest, kBoolean, kRead, "FastDeploy", "All that generate.", "false"},
    // Scores of texts.
    {"text_1", kScoreRequest, kStrings, kRead, "vLLM",
     "One text, or as many as `text_2` has. Also `queries`, `data_1`."},
    {"text_2", kScoreRequest, kStrings, kRead, "vLLM",
     "Up to 2048 texts, each scored against its one of `text_1`. Also `documents`, `items`, `data_2`."},
    {"queries", kScoreRequest, kStrings, kRead, "vLLM", "As `text_1`."},
    {"data_1", kScoreRequest, kStrings, kRead, "vLLM", "As `text_1`."},
    {"documents", kScoreRequest, kStrings, kRead, "vLLM", "As `text_2`."},
    {"items", kScoreRequest, kStrings, kRead, "vLLM", "As `text_2`."},
    {"data_2", kScoreRequest, kStrings, kRead, "vLLM", "As `text_2`."},
    {.name = "query",
     .kinds = kRerankRequest,
     .type = kString,
     .dialect = "Jina",
     .help = "What the documents are compared with.",
     .required_by = kRerankRequest},
    {.name = "documents",
     .kinds = kRerankRequest,
     .type = kArray,
     .dialect = "Jina",
     .help = "Up to 2048 texts, or objects with a `text`.",
     .required_by = kRerankRequest},
    {"top_n", kRerankRequest, kInteger, kRead, "Jina", "So many results, the best; 0: all.", "0", 0, INT32_MAX},
    {"return_documents", kRerankRequest, kBoolean, kRead, "Jina", "Results repeat their document.", "true"},
    {"max_tokens_per_doc", kRerankRequest, kInteger, kUnsupported, "Cohere", "Use `truncate_prompt_tokens`."},
    {"use_activation", kScores, kBoolean, kNoEffect, "vLLM", "Scores are cosines."},
    {"activation", kScores, kBoolean, kNoEffect, "vLLM", "Scores are cosines."},
    {"softmax_normalize", kScores, kAny, kUnsupported, "vLLM", "Scores are cosines."},
    {"session_id", kBoth, kAny, kNoEffect, "vLLM", "Equal beginnings are found without it."},
};

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

const RequestField* find_request_field(std::string_view name, uint32_t kind) {
  static const auto* const places = [] {
    auto* map = new std::unordered_multimap<std::string_view, const RequestField*>;
    for (const RequestField& field : kFields) map->emplace(field.name, &field);
    return map;
  }();
  const auto [first, last] = places->equal_range(name);
  for (auto it = first; it != last; ++it) {
    if (it->second->kinds & kind) return it->second;
  }
  return nullptr;
}

std::string_view field_type_text(FieldType type) {
  switch (type) {
    case kString:
      return "a string";
    case kBoolean:
      return "true or false";
    case kInteger:
      return "an integer";
    case kNumber:
      return "a number";
    case kArray:
      return "an array";
    case kObject:
      return "an object";
    case kTokenIds:
      return "an array of token ids";
    case kStrings:
      return "a string or an array of strings";
    case kAny:
      break;
  }
  return "any value";
}

bool has_type(const Json& value, FieldType type) {
  switch (type) {
    case kString:
      return value.is_string();
    case kBoolean:
      return value.is_boolean();
    case kInteger:  // JavaScript and some JSON writers say 16.0 for 16.
      return value.is_number_integer() ||
             (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
              std::abs(value.get<double>()) < 0x1p53);
    case kNumber:
      return value.is_number();
    case kArray:
    case kTokenIds:  // its entries are checked where they are read
      return value.is_array();
    case kObject:
      return value.is_object();
    case kStrings:
      return value.is_string() || value.is_array();
    case kAny:
      break;
  }
  return true;
}

}  // namespace spate

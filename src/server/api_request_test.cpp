// Goal    Every field of a request body is taken as the API says, and everything wrong is refused with the field, the
//         value and the limit; nothing that changes the answer is ignored silently.
// Method  Bodies as clients send them; one wrong thing at a time.
#include "server/api_request.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_support.h"
#include "server/openapi.h"
#include "server/request_table.h"
#include "server/responses_request.h"

#include "base/test.h"

namespace spate {
namespace {

const ParseLimits kLimits{.defaults = {.temperature = 0.6f, .sampling_top_k = 20},
                          .vocab_size = 1000,
                          .max_logprobs = 20,
                          .max_model_len = 4096};

ApiResult<ChatRequest> chat(const std::string& fields) {
  return parse_chat_request(
      R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) + "}", kLimits);
}
ApiResult<CompletionRequest> completion(const std::string& fields) {
  return parse_completion_request("{" + fields + "}", kLimits);
}
// "param|code|status" of a refusal, or "ok".
template <typename T>
std::string refusal(ApiResult<T> result) {
  if (result.ok()) return "ok";
  return fmt::format("{}|{}|{}", result.error().param, result.error().code, result.error().http_status);
}
std::string request_error(const std::string& fields) {
  auto result = chat(fields);
  return result.ok() ? "" : result.error().message;
}

}  // namespace

TEST_CASE("chat request: the model's generation_config fills what the request leaves out, null counts as absent") {
  auto request = chat(R"("top_p":0.5,"temperature":null,"max_tokens":null,"stop":null,"tools":null,"stream":null)");
  REQUIRE(request.ok());
  CHECK(request->sampling.temperature == 0.6f);
  CHECK(request->sampling.sampling_top_k == 20);
  CHECK(request->sampling.top_p == 0.5f);
  CHECK(!request->max_tokens.has_value());
  CHECK(chat(R"("temperature":0)")->sampling.temperature == 0.0f);
}

TEST_CASE("messages request: a tool's result says that it is an error, once") {
  const auto result = [](const std::string& fields) {
    auto request = parse_messages_request(
        R"({"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t",)" + fields +
            "}]}]}",
        kLimits, false);
    return request.ok() ? (*request->messages)[0]["content"].get<std::string>() : refusal(std::move(request));
  };
  CHECK(result(R"("content":"no such file","is_error":true)") == "Error: no such file");
  CHECK(result(R"("content":[{"type":"text","text":"no such file"}],"is_error":true)") == "Error: no such file");
  CHECK(result(R"("content":"ERROR 404","is_error":true)") == "ERROR 404");
  CHECK(result(R"("is_error":true)") == "Error");
  CHECK(result(R"("content":"fine","is_error":false)") == "fine");
  CHECK(result(R"("content":"fine","is_error":"yes")") == "messages[0].content[0].is_error|invalid_type|400");
}

TEST_CASE("messages request: several texts of a tool's result are lines of it") {
  auto request = parse_messages_request(
      R"({"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[
          {"type":"text","text":"line 1"},{"type":"text","text":"line 2"}]}]}]})",
      kLimits, false);
  REQUIRE(request.ok());
  CHECK((*request->messages)[0]["content"] == "line 1\nline 2");
}

TEST_CASE("messages request: Claude Code's note of billing, which no two requests have alike, is left out") {
  const auto messages = [](const std::string& fields) {
    return parse_messages_request("{\"max_tokens\":5," + fields + "}", kLimits, false)->messages->dump();
  };
  const std::string note = R"({"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=d1d48;"})";
  const std::string user = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::string brief = R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])";
  CHECK(messages("\"system\":[" + note + R"(,{"type":"text","text":"Be "},{"type":"text","text":"brief."}],)" + user) ==
        brief);
  CHECK(messages("\"system\":[" + note + "]," + user) == R"([{"role":"user","content":"Hi"}])");
  // So they are inside the conversation; what a person says stays.
  CHECK(messages(R"("messages":[{"role":"user","content":"x-anthropic-billing-header: 1"},
                    {"role":"system","content":"x-anthropic-billing-header: 2"},{"role":"system","content":[)" +
                 note + R"(,{"type":"text","text":"Be brief."}]},{"role":"system","content":[)" + note + "]}]") ==
        R"([{"role":"user","content":"x-anthropic-billing-header: 1"},)"
        R"({"role":"system","content":[{"type":"text","text":"Be brief."}]}])");
}

TEST_CASE("messages request: vLLM's cache_salt and chat_template_kwargs hold, the latter also against thinking") {
  const auto request = [](const std::string& fields, bool counts_only = false) {
    return parse_messages_request(R"({"max_tokens":5,"messages":[{"role":"user","content":"Hi"}],)" + fields + "}",
                                  kLimits, counts_only);
  };
  CHECK(request(R"("cache_salt":"a")")->cache_salt == "a");
  CHECK(refusal(request(R"("cache_salt":"")")) == "cache_salt|invalid_value|400");
  for (const bool counts_only : {false, true}) {
    CHECK((*request(R"("chat_template_kwargs":{"tone":"dry"})", counts_only)->template_kwargs)["tone"] == "dry");
  }
  auto both = request(R"("chat_template_kwargs":{"thinking":true},"thinking":{"type":"disabled"})");
  CHECK((*both->template_kwargs)["thinking"] == true);
  CHECK((*both->template_kwargs)["enable_thinking"] == false);
  CHECK(refusal(request(R"("chat_template_kwargs":[])")) == "chat_template_kwargs|invalid_type|400");
}

TEST_CASE("requests: SGLang's rid is a request_id, which wins") {
  CHECK(chat(R"("rid":"a")")->request_id == "a");
  CHECK(completion(R"("prompt":"x","rid":"a","request_id":"b")")->request_id == "b");
  CHECK(parse_embeddings_request(R"({"input":"x","rid":"a"})", kLimits)->request_id == "a");
  CHECK(refusal(chat(R"("rid":["a"])")) == "rid|invalid_type|400");
  CHECK(refusal(chat(R"("rid":")" + std::string(129, 'r') + "\"")) == "rid|invalid_value|400");
}

TEST_CASE("chat request: every field arrives") {
  auto request = chat(R"("model":"m","max_tokens":5,"max_completion_tokens":7,"n":2,"seed":-3,"stop":["a","b"],
    "logprobs":true,"top_logprobs":3,"logit_bias":{"7":-100,"9":2.5},"min_p":0.1,"top_k":-1,"repetition_penalty":1.5,
    "presence_penalty":-2,"frequency_penalty":2,"min_tokens":2,"stop_token_ids":[4,5],"ignore_eos":true,
    "include_stop_str_in_output":true,"skip_special_tokens":false,"stream":true,"stream_options":{"include_usage":true},
    "priority":-4,"cache_salt":"s","request_id":"r","return_token_ids":true,"return_tokens_as_token_ids":true,
    "chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low","add_special_tokens":true,
    "include_reasoning":false,"parallel_tool_calls":false,"echo":true,"user":"u","max_tokens2":1,
    "speculate":false,"speculative_reference":["x","y"])");
  REQUIRE(request.ok());
  const SamplingParams& sampling = request->sampling;
  CHECK(request->max_tokens == 7);
  CHECK(sampling.n == 2);
  CHECK(sampling.seed == static_cast<uint64_t>(-3));
  CHECK(sampling.stop == std::vector<std::string>{"a", "b"});
  CHECK(sampling.logprobs == 3);
  CHECK(sampling.logit_bias == std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {9, 2.5f}});
  CHECK(sampling.sampling_top_k == -1);
  CHECK(sampling.stop_token_ids == std::vector<int32_t>{4, 5});
  CHECK(sampling.ignore_eos);
  CHECK(!sampling.skip_special_tokens);
  CHECK(request->include_usage);
  CHECK(request->priority == -4);
  CHECK(request->cache_salt == "s");
  CHECK(!request->speculate);
  CHECK(!request->relaxed_acceptance);
  CHECK(request->speculative_reference == std::vector<std::string>{"x", "y"});
  CHECK((*request->template_kwargs)["enable_thinking"] == false);
  CHECK((*request->template_kwargs)["reasoning_effort"] == "low");
  CHECK(request->unknown_fields == std::vector<std::string>{"max_tokens2"});
}

TEST_CASE("chat request: wrong types and values name the field, the value and the limit") {
  CHECK(request_error(R"("temperature":"hot")") == "temperature must be a number, got \"hot\"");
  CHECK(request_error(R"("temperature":-1)") == "temperature must be in [0, 2], got -1");
  CHECK(request_error(R"("repetition_penalty":0)") == "repetition_penalty must be in [0.0001, 10000], got 0");
  CHECK(request_error(R"("cache_salt":"")").starts_with("cache_salt must not be empty"));
  CHECK(request_error(R"("max_tokens":-5)") == "max_tokens must be in [1, 2147483647], got -5");
  CHECK_FALSE(chat(R"("max_tokens":-1)")->max_tokens);
  CHECK(chat(R"("n_predict":7)")->max_tokens == 7);
  CHECK(chat(R"("n_predict":7,"max_tokens":9)")->max_tokens == 9);
  CHECK(completion(R"("prompt":"a")")->max_tokens == 16);
  CHECK_FALSE(completion(R"("prompt":"a","n_predict":-1)")->max_tokens);
  CHECK(request_error(R"("max_tokens":1.5)") == "max_tokens must be an integer, got 1.5");
  CHECK(request_error(R"("max_tokens":99999999999999999999)").find("max_tokens must be") == 0);
  CHECK(request_error(R"("n":1000000)") == "n must be in [1, 128], got 1000000");
  CHECK(refusal(chat(R"("n":2,"temperature":0)")) == "n|invalid_value|400");
  CHECK(refusal(chat(R"("top_logprobs":2)")) == "top_logprobs|invalid_value|400");
  CHECK(refusal(chat(R"("logprobs":true,"top_logprobs":21)")) == "top_logprobs|invalid_value|400");
  CHECK(refusal(chat(R"("logprobs":true,"top_logprobs":-1)")) == "top_logprobs|invalid_value|400");
  CHECK(refusal(chat(R"("prompt_logprobs":-1)")) == "prompt_logprobs|invalid_value|400");
  CHECK(refusal(chat(R"("logprob_token_ids":[1])")) == "logprob_token_ids|invalid_value|400");
  CHECK(refusal(chat(R"("logprobs":true,"top_logprobs":1,"logprob_token_ids":[1])")) == "ok");
  CHECK(refusal(chat(R"("logprobs":true,"logprob_token_ids":[1000000])")) == "logprob_token_ids|invalid_value|400");
  CHECK(refusal(chat(R"("logprobs":true,"logprob_token_ids":[1,2])")) == "ok");
  CHECK(refusal(chat(R"("stop":[""])")) == "stop|invalid_value|400");
  CHECK(refusal(chat(R"("stop":[1])")) == "stop|invalid_type|400");
  CHECK(refusal(chat(R"("logit_bias":{"x":1})")) == "logit_bias|invalid_value|400");
  CHECK(refusal(chat(R"("logit_bias":{"1000":1})")) == "logit_bias|invalid_value|400");
  CHECK(request_error(R"("speculative_reference":[1])") ==
        "speculative_reference must be a string or an array of strings, got an array");
  CHECK(refusal(chat(R"("speculate":1)")) == "speculate|invalid_type|400");
  CHECK(refusal(chat(R"("relaxed_acceptance":"yes")")) == "relaxed_acceptance|invalid_type|400");
  CHECK(refusal(chat(R"("stop_token_ids":[-1])")) == "stop_token_ids|invalid_type|400");
  CHECK(refusal(chat(R"("stream_options":{"include_usage":true})")) == "stream_options|invalid_value|400");
  CHECK(refusal(chat(R"("stream":"yes")")) == "stream|invalid_type|400");
  CHECK(refusal(chat(R"("prompt_logprobs":1,"stream":true)")) == "prompt_logprobs|invalid_value|400");
  CHECK(refusal(chat(R"("continue_final_message":true,"add_generation_prompt":true)")) ==
        "continue_final_message|invalid_value|400");
  CHECK(refusal(chat(R"("modalities":["audio"])")) == "modalities|invalid_value|400");
  CHECK(refusal(chat(R"("temperature":1e999)")) == "|json_parse_error|400");
  CHECK(refusal(chat(R"("max_tokens":16.0)")) == "ok");
}

TEST_CASE("chat request: the form of the answer, under all its names") {
  using Kind = StructuredOutput::Kind;
  const auto output_of = [](const char* fields) {
    ApiResult<ChatRequest> request = chat(fields);
    REQUIRE(request.ok());
    return request->structured_output;
  };
  CHECK(output_of(R"("temperature":1)") == nullptr);
  CHECK(output_of(R"("response_format":{"type":"text"})") == nullptr);
  CHECK(output_of(R"("guided_choice":null,"grammar":"")") == nullptr);
  for (const char* fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"null"}}})",
        R"("response_format":{"type":"json_object","schema":{"type":"null"}})",
        R"("structured_outputs":{"json":{"type":"null"}})", R"("guided_json":{"type":"null"})",
        R"("guided_json":"{\"type\":\"null\"}")", R"("json_schema":{"type":"null"})"}) {
    INFO(fields);
    const auto output = output_of(fields);
    REQUIRE(output != nullptr);
    CHECK(output->kind == Kind::kJsonSchema);
    CHECK(output->schema->dump() == R"({"type":"null"})");
  }
  CHECK(output_of(R"("response_format":{"type":"json_object"})")->schema->dump() == R"({"type":"object"})");
  CHECK(output_of(R"("structured_outputs":{"regex":"a+"})")->text == "a+");
  CHECK(output_of(R"("guided_regex":"a+")")->kind == Kind::kRegex);
  CHECK(output_of(R"("structured_outputs":{"choice":["a","b"]})")->choices == std::vector<std::string>{"a", "b"});
  CHECK(output_of(R"("guided_grammar":"root ::= \"a\"")")->kind == Kind::kGrammar);
  CHECK(output_of(R"("ebnf":"root ::= \"a\"")")->kind == Kind::kGrammar);
  CHECK(output_of(R"("regex":"a+")")->kind == Kind::kRegex);
  CHECK(output_of(R"("regex":"")") == nullptr);
  CHECK(refusal(chat(R"("regex":"a+","ebnf":"root ::= \"a\"")")) == "ebnf|invalid_value|400");
  const auto options =
      output_of(
          R"("structured_outputs":{"json":true,"disable_any_whitespace":true,"disable_additional_properties":true})")
          ->json;
  CHECK_FALSE(options.any_whitespace);
  CHECK_FALSE(options.default_additional_properties);
  CHECK(refusal(chat(R"("guided_regex":"a","guided_choice":["b"])")) == "guided_regex|invalid_value|400");
  CHECK(refusal(chat(R"("guided_choice":[])")) == "guided_choice|invalid_value|400");
  CHECK(refusal(chat(R"("guided_choice":[1])")) == "guided_choice|invalid_value|400");
  const std::string long_choice = "\"" + std::string(700'000, 'x') + "\"";
  CHECK(refusal(chat("\"guided_choice\":[" + long_choice + "," + long_choice + "]")) == "guided_choice|invalid_value|400");
  CHECK(refusal(chat(R"("guided_regex":1)")) == "guided_regex|invalid_type|400");
  CHECK(refusal(chat(R"("guided_json":"{")")) == "guided_json|invalid_value|400");
  CHECK(refusal(chat(R"("structured_outputs":{"regexp":"a"})")) == "structured_outputs|invalid_value|400");
  CHECK(refusal(chat(R"("structured_outputs":{})")) == "structured_outputs|invalid_value|400");
  CHECK(refusal(chat(R"("response_format":{"type":"json_schema"})")) ==
        "response_format.json_schema.schema|invalid_value|400");
}

TEST_CASE("chat request: what is not built is refused with 400, never ignored") {
  CHECK(refusal(chat(R"("response_format":{"type":"text"})")) == "ok");
  CHECK(refusal(chat(R"("response_format":{"type":"poem"})")) == "response_format.type|invalid_value|400");
  CHECK(refusal(chat(R"("structured_outputs":{"structural_tag":7})")) ==
        "structured_outputs.structural_tag|invalid_value|400");
  CHECK(refusal(chat(R"("structured_outputs":{"structural_tag":"{"})")) ==
        "structured_outputs.structural_tag|invalid_value|400");
  CHECK(refusal(chat(R"("structural_tag":{"x":1},"guided_json":{})")) == "guided_json|invalid_value|400");
  CHECK(refusal(chat(R"("tool_choice":"required","tools":[])")) == "tool_choice|invalid_value|400");
  CHECK(refusal(chat(R"("tool_choice":{"type":"function","function":{"name":"f"}})")) ==
        "tool_choice|invalid_value|400");
  CHECK(refusal(chat(R"("allowed_token_ids":[])")) == "allowed_token_ids|invalid_value|400");
  CHECK(refusal(chat(R"("allowed_token_ids":["a"])")) == "allowed_token_ids|invalid_type|400");
  CHECK(refusal(chat(R"("allowed_token_ids":[1],"guided_regex":"a")")) == "allowed_token_ids|invalid_value|400");
  CHECK(refusal(chat(R"("bad_words":["x"," y"],"bad_words_token_ids":[3])")) == "ok");
  CHECK(refusal(chat(R"("bad_words":["x",1])")) == "bad_words|invalid_type|400");
  CHECK(refusal(chat(R"("bad_words":["x"," "])")) == "bad_words|invalid_value|400");
  CHECK(refusal(chat(R"("bad_words":[")" + std::string(1025, 'x') + R"("])")) == "bad_words|invalid_value|400");
  CHECK(refusal(chat(R"("bad_words_token_ids":[1000000000])")) == "bad_words_token_ids|invalid_value|400");
  CHECK(refusal(chat(R"("early_stopping":true)")) == "early_stopping|invalid_value|400");
  CHECK(refusal(chat(R"("kv_transfer_params":{"do_remote_decode":true})")) ==
        "kv_transfer_params|unsupported_parameter|400");
  CHECK(refusal(chat(R"("bad_words":[],"use_beam_search":false)")) == "ok");
  CHECK(refusal(chat(R"("length_penalty":1.0,"typical_p":1)")) == "ok");
  CHECK(refusal(chat(R"("length_penalty":0.8)")) == "length_penalty|invalid_value|400");
  CHECK(refusal(chat(R"("n":2,"best_of":2)")) == "ok");
  CHECK(refusal(chat(R"("n":2,"best_of":3)")) == "best_of|unsupported_parameter|400");
  CHECK(refusal(chat(R"("n":2,"best_of":3,"use_beam_search":true,"length_penalty":0.8)")) == "ok");
  CHECK(refusal(chat(R"("truncation_side":"middle")")) == "truncation_side|invalid_value|400");
  CHECK(refusal(chat(R"("stream_interval":0)")) == "stream_interval|invalid_value|400");
  CHECK(refusal(chat(R"("vllm_xargs":{"x":1})")) == "vllm_xargs|unsupported_parameter|400");
}

TEST_CASE("chat request: messages") {
  const auto with = [](const std::string& messages) {
    return parse_chat_request(R"({"messages":)" + messages + "}", kLimits);
  };
  CHECK(refusal(parse_chat_request("{}", kLimits)) == "messages|missing_required_parameter|400");
  CHECK(refusal(with("[]")) == "messages|invalid_value|400");
  CHECK(refusal(with(R"("hi")")) == "messages|invalid_type|400");
  CHECK(refusal(with(R"([{"role":"robot","content":"x"}])")) == "messages[0].role|invalid_value|400");
  CHECK(refusal(with(R"([{"role":"user"}])")) == "messages[0].content|invalid_value|400");
  CHECK(refusal(with(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])")) ==
        "messages[0].content[0]|invalid_value|400");
  CHECK(refusal(with(R"([7])")) == "messages[0]|invalid_value|400");

  auto parts = with(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  REQUIRE(parts.ok());
  CHECK((*parts->messages)[0]["content"][1]["text"] == "b");

  auto calls = with(R"([{"role":"assistant","content":null,"reasoning":"r","tool_calls":[{"id":"1","type":"function",
    "function":{"name":"f","arguments":"{\"x\": 1}"}}]},{"role":"tool","tool_call_id":"1","content":"2"}])");
  REQUIRE(calls.ok());
  CHECK((*calls->messages)[0]["tool_calls"][0]["function"]["arguments"]["x"] == 1);
  CHECK((*calls->messages)[0]["reasoning_content"] == "r");
}

TEST_CASE("requests: JSON inside a field is not called the request body") {
  const std::string call = R"({"id":"1","type":"function","function":{"name":"f","arguments":"{bad"}})";
  for (const auto& parsed :
       {chat(R"("guided_json":"{")"),
        parse_chat_request(
            R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[)" + call + "]}]}",
            kLimits)}) {
    REQUIRE_FALSE(parsed.ok());
    INFO(parsed.error().message);
    CHECK(parsed.error().message.find("is not valid JSON: at line 1, column") != std::string::npos);
    CHECK(parsed.error().message.find("request body") == std::string::npos);
  }
}

TEST_CASE("requests: a zero byte is not the end of the JSON") {
  const std::string_view body("{\"prompt\":\"a\"}\0{\"prompt\":\"b\"}", 29);
  const auto parsed = parse_completion_request(body, kLimits);
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().message == "The request body is not valid JSON: byte 14 is zero");
}

TEST_CASE("tool_choice of type allowed_tools leaves the others out, and is refused with its place") {
  const auto chosen = [](const std::string& allowed) {
    return chat(R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)"
                R"("tool_choice":{"type":"allowed_tools","allowed_tools":)" +
                allowed + "}");
  };
  auto required = chosen(R"({"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]})");
  CHECK(required->tool_choice == ToolChoice::kRequired);
  REQUIRE(required->tools->size() == 1);
  CHECK((*required->tools)[0]["function"]["name"] == "g");
  CHECK(chosen(R"({"tools":[{"function":{"name":"g"}},{"function":{"name":"f"}}]})")->tools->size() == 2);
  CHECK(chosen(R"({"tools":[{"function":{"name":"g"}}]})")->tool_choice == ToolChoice::kAuto);
  CHECK(refusal(chosen(R"({"tools":[{"function":{"name":"h"}}]})")) == "tool_choice|invalid_value|400");
  CHECK(refusal(chosen(R"({"tools":[]})")) == "tool_choice.allowed_tools.tools|invalid_value|400");
  CHECK(refusal(chosen(R"({"mode":"none","tools":[{"function":{"name":"g"}}]})")) ==
        "tool_choice.allowed_tools.mode|invalid_value|400");
  CHECK(refusal(chosen(R"({"tools":[{"function":{"name":1}}]})")) ==
        "tool_choice.allowed_tools.tools[0].function|invalid_value|400");
  CHECK(refusal(chosen(R"({"tools":[7]})")).ends_with("|400"));
  CHECK(refusal(chosen("null")) == "tool_choice.allowed_tools|invalid_value|400");
}

TEST_CASE("chat request: names and ids inside messages, tools and forms have types") {
  const auto message_error = [](const std::string& message) {
    return refusal(parse_chat_request(R"({"messages":[{"role":"user","content":"x"},)" + message + "]}", kLimits));
  };
  const std::string call = R"("type":"function","function":{"name":"f","arguments":"{}"}}]})";
  CHECK(message_error(R"({"role":"assistant","tool_calls":[{"id":"c",)" + call) == "ok");
  CHECK(message_error(R"({"role":"assistant","tool_calls":[{"id":7,)" + call) ==
        "messages[1].tool_calls[0].id|invalid_type|400");
  CHECK(message_error(R"({"role":"tool","content":"x","tool_call_id":["c"]})") ==
        "messages[1].tool_call_id|invalid_type|400");
  CHECK(message_error(R"({"role":"user","content":"x","name":{}})") == "messages[1].name|invalid_type|400");
  CHECK(refusal(chat(R"("tools":[{"type":"function","function":{"name":"f","description":1}}])")) ==
        "tools[0].function.description|invalid_type|400");
  const auto form = [](const std::string& field) {
    return refusal(chat(R"("response_format":{"type":"json_schema","json_schema":{"schema":true,)" + field + "}}"));
  };
  CHECK(form(R"("name":"n","description":"d","strict":true)") == "ok");
  CHECK(form(R"("name":1)") == "response_format.json_schema.name|invalid_type|400");
  CHECK(form(R"("strict":"yes")") == "response_format.json_schema.strict|invalid_type|400");
}

TEST_CASE("requests: SGLang's limits of the answer") {
  CHECK(completion(R"("prompt":"x","max_new_tokens":7)")->max_tokens == 7);
  CHECK(completion(R"("prompt":"x","max_new_tokens":7,"max_tokens":5)")->max_tokens == 5);
  CHECK(chat(R"("max_new_tokens":7,"min_new_tokens":3)")->max_tokens == 7);
  CHECK(chat(R"("max_new_tokens":7,"min_new_tokens":3)")->sampling.min_tokens == 3);
  CHECK(refusal(chat(R"("max_new_tokens":0)")) == "max_new_tokens|invalid_value|400");
  auto tokens = parse_tokens_request(R"({"token_ids":[1],"sampling_params":{"max_new_tokens":7}})", kLimits);
  CHECK(tokens->max_tokens == 7);
}

TEST_CASE("requests: llama-server's samplers and window of penalties") {
  const std::string usual = R"("top_k":5,"top_p":0.5,"min_p":0.1,"temperature":0.7,"repeat_penalty":1.5,)";
  const auto with = [&](const std::string& fields) { return chat(usual + fields)->sampling; };
  CHECK(with(R"("samplers":"edstkymxpia")").top_p == 0.5f);
  const SamplingParams some = with(R"("samplers":["top_k","infill"])");
  CHECK(some.sampling_top_k == 5);
  CHECK(some.top_p == 1);
  CHECK(some.min_p == 0);
  CHECK(some.temperature == 1);
  CHECK(some.repetition_penalty == 1);
  CHECK(with(R"("samplers":[])").sampling_top_k == 0);
  CHECK(with(R"("samplers":["penalties","temperature"])").repetition_penalty == 1.5f);
  for (const char* samplers : {R"(["top_k","no"])", R"("kz")", "5", "[5]", "{}"}) {
    CHECK(refusal(chat(fmt::format(R"("samplers":{})", samplers))) == "samplers|invalid_type|400");
  }
  // Orders that draw the same as ours, as some of them are off or commute.
  CHECK(with(R"("samplers":"eskt")").temperature == 0.7f);
  CHECK(with(R"("samplers":"emkt")").min_p == std::pow(0.1f, 1 / 0.7f));
  CHECK(with(R"("samplers":"ekmkt")").sampling_top_k == 5);
  CHECK(chat(R"("samplers":"dkypmxt","top_p":0.9,"temperature":1)")->sampling.top_p == 0.9f);
  CHECK(chat(R"("samplers":"pkmt","temperature":0,"top_p":0.9,"top_k":3,"min_p":0.1)")->sampling.min_p == 0.1f);
  // Others are said to have no effect: llama-server's own is one of them, and its clients send it.
  const auto is_ours = [&](const std::string& samplers) {
    auto request = chat(usual + fmt::format(R"("samplers":"{}")", samplers));
    REQUIRE(request.ok());
    return std::ranges::find(request->no_effect_fields, "samplers (their order)") == request->no_effect_fields.end();
  };
  for (const char* samplers : {"edskypmxt", "kpt", "pk", "ke", "tpt", "tt"}) CHECK_FALSE(is_ours(samplers));
  for (const char* samplers : {"ekmmt", "etkmp", "eskt"}) CHECK(is_ours(samplers));
  CHECK(with(R"("repeat_last_n":-1)").repetition_penalty == 1.5f);
  CHECK(with(R"("repeat_last_n":4096)").repetition_penalty == 1.5f);
  CHECK(with(R"("repeat_last_n":0,"presence_penalty":1)").repetition_penalty == 1);
  CHECK(refusal(chat(usual + R"("repeat_last_n":64)")) == "repeat_last_n|unsupported_parameter|400");
  CHECK(refusal(chat(R"("repeat_last_n":64,"repeat_penalty":1)")) == "ok");
  CHECK(refusal(chat(R"("repeat_last_n":-2)")) == "repeat_last_n|invalid_value|400");
}

TEST_CASE("requests: fields of other servers that change the answer are refused, their defaults taken") {
  CHECK(!chat(R"("reasoning_format":"none")")->separate_reasoning);
  CHECK(chat(R"("reasoning_format":"deepseek")")->separate_reasoning);
  CHECK(refusal(chat(R"("reasoning_format":"deepseek-legacy")")) == "reasoning_format|invalid_value|400");
  for (const char* field : {"prompt_token_ids\":[1", "return_prompt_token_ids\":true", "reasoning_control\":true",
                            "n_indent\":4", "adaptive_target\":0.5"}) {
    const std::string name = std::string(field).substr(0, std::string(field).find('"'));
    const std::string closed = std::string(field) + (name == "prompt_token_ids" ? "]" : "");
    CHECK(refusal(chat("\"" + closed)) == name + "|unsupported_parameter|400");
  }
  CHECK(refusal(chat(R"("bootstrap_room":0,"adaptive_target":-1,"n_indent":0,"reasoning_control":false)")) == "ok");
}

TEST_CASE("errors: what a client named is told back in part") {
  const std::string name(100'000, 'x');
  const std::vector<std::string> names{"m"};
  CHECK(model_not_found(name, names).message.size() < 300);
  CHECK(request_error(R"("response_format":{"type":")" + name + R"("})").size() < 300);
  const auto part =
      parse_chat_request(R"({"messages":[{"role":"user","content":[{"type":")" + name + R"(","x":"y"}]}]})", kLimits);
  CHECK(part.error().message.size() < 300);
}

TEST_CASE("chat request: tools") {
  CHECK(!chat(R"("tools":[])")->tools);
  auto request = chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])");
  REQUIRE(request.ok());
  CHECK(request->tool_choice == ToolChoice::kAuto);
  CHECK(chat(R"("tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}])")->tool_choice ==
        ToolChoice::kNone);
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":)";
  CHECK(chat(tools + R"("required")")->tool_choice == ToolChoice::kRequired);
  CHECK(chat(tools + R"({"type":"function","function":{"name":"f"}})")->named_function == "f");
  CHECK(refusal(chat(tools + R"({"type":"function","function":{"name":"g"}})")) == "tool_choice|invalid_value|400");
  CHECK(refusal(chat(tools + R"({"type":"custom"})")) == "tool_choice|unsupported_parameter|400");
  CHECK(refusal(chat(tools + R"({"type":"function"})")) == "tool_choice.function|invalid_value|400");
  CHECK(refusal(chat(R"("tools":[{"type":"function"}])")) == "tools[0]|invalid_value|400");
  CHECK(refusal(chat(R"("tools":[{"type":"function","function":{}}])")) == "tools[0].function.name|invalid_value|400");
  // A demanded call and another form of the answer exclude each other; response_format is of the content.
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
    for (const char* form :
         {R"("structured_outputs":{"regex":"a+"})", R"("guided_choice":["a"])", R"("grammar":"root ::= 'a'")"}) {
      CHECK(refusal(chat(tools + choice + "," + form)) == "tool_choice|invalid_value|400");
    }
    CHECK(refusal(chat(tools + choice + R"(,"response_format":{"type":"json_object"})")) == "ok");
  }
  CHECK(refusal(chat(tools + R"("auto","structured_outputs":{"regex":"a+"})")) == "ok");
}

TEST_CASE("bodies: malformed, deep and hostile JSON") {
  CHECK(refusal(parse_chat_request("", kLimits)) == "|json_parse_error|400");
  CHECK(refusal(parse_chat_request("[1]", kLimits)) == "|invalid_value|400");
  CHECK(refusal(parse_chat_request("{\"messages\": [}", kLimits)) == "|json_parse_error|400");
  CHECK(refusal(parse_chat_request("{\"a\":\"\xff\xfe\"}", kLimits)) == "|json_parse_error|400");
  CHECK(refusal(parse_chat_request(std::string(1'000'000, '['), kLimits)) == "|json_parse_error|400");
  CHECK(refusal(parse_chat_request(R"({"a":)" + std::string(63, '[') + std::string(63, ']') + "}", kLimits)) ==
        "messages|missing_required_parameter|400");
  auto deep = parse_chat_request(R"({"a":)" + std::string(64, '[') + std::string(64, ']') + "}", kLimits);
  CHECK(deep.error().message.find("nested deeper than 64") != std::string::npos);
  auto broken = parse_chat_request("{\n\"model\": tru}", kLimits);
  CHECK(broken.error().message.find("at line 2, column") != std::string::npos);
}

TEST_CASE("bodies: an object of 300,000 keys is read in linear time") {
  std::string body = R"({"messages":[{"role":"user","content":"x"}],"metadata":{)";
  for (int i = 0; i < 300'000; ++i) body += fmt::format("{}\"k{}\":{}", i == 0 ? "" : ",", i, i);
  CHECK(refusal(parse_chat_request(body + "}}", kLimits)) == "ok");  // quadratic would be 10^11 comparisons: minutes
}

TEST_CASE("bodies: values that take much more memory than their text") {
  for (const std::string value : {"\"\"", "[]", "{}", "{\"\":0}"}) {
    std::string body = R"({"prompt":"a","metadata":[)";
    while (body.size() < 20'000'000) body += value + ",";
    INFO(value);
    CHECK(refusal(parse_completion_request(body + "0]}", kLimits)) == "|request_too_large|413");
  }
  std::string tokens = R"({"prompt":[)";
  for (int i = 0; i < 2'000'000; ++i) tokens += "7,";
  auto request = parse_completion_request(tokens + "7]}", kLimits);
  REQUIRE(request.ok());
  CHECK(std::get<std::vector<int32_t>>(request->prompts[0]).size() == 2'000'001);
}

TEST_CASE("completion request: the forms of a prompt") {
  CHECK(std::get<std::string>(completion(R"("prompt":"a")")->prompts[0]) == "a");
  CHECK(completion(R"("prompt":["a","b"])")->prompts.size() == 2);
  CHECK(std::get<std::vector<int32_t>>(completion(R"("prompt":[1,2])")->prompts[0]) == std::vector<int32_t>{1, 2});
  CHECK(completion(R"("prompt":[[1],[2,3]])")->prompts.size() == 2);
  CHECK(completion(R"("prompt_token_ids":[5])")->prompts.size() == 1);
  CHECK(refusal(completion(R"("model":"m")")) == "prompt|missing_required_parameter|400");
  CHECK(refusal(completion(R"("prompt":[])")) == "prompt|invalid_value|400");
  CHECK(refusal(completion(R"("prompt":[1,"a"])")) == "prompt|invalid_type|400");
  CHECK(refusal(completion(R"("prompt":[-1])")) == "prompt|invalid_type|400");
  CHECK(refusal(completion(R"("prompt":{"a":1})")) == "prompt|invalid_type|400");
}

TEST_CASE("completion request: max_tokens is 16 unless told, 0 only with echo; suffix is refused") {
  CHECK(completion(R"("prompt":"a")")->max_tokens == 16);
  CHECK(completion(R"("prompt":"a","max_tokens":null)")->max_tokens == 16);
  CHECK(refusal(completion(R"("prompt":"a","max_tokens":0)")) == "max_tokens|invalid_value|400");
  auto scored = completion(R"("prompt":"a","max_tokens":0,"echo":true,"logprobs":1)");
  REQUIRE(scored.ok());
  CHECK(scored->score_only);
  CHECK(scored->sampling.prompt_logprobs == 1);
  CHECK(refusal(completion(R"("prompt":"a","suffix":"b")")) == "suffix|invalid_value|400");
  CHECK(refusal(completion(R"("prompt":"a","suffix":"")")) == "ok");
  CHECK(refusal(completion(R"("prompt":"a","suffix":{"b":1},"best_of":1)")) == "ok");
}

TEST_CASE("tokenize and detokenize take both dialects") {
  CHECK(*parse_tokenize_request(R"({"prompt":"a"})", kLimits)->prompt == "a");
  CHECK(parse_tokenize_request(R"({"content":"a"})", kLimits)->content_dialect);
  const std::vector<std::string> unknown{"nonsense"};
  CHECK(parse_tokenize_request(R"({"content":"a","with_pieces":true,"nonsense":1})", kLimits)->unknown_fields ==
        unknown);
  CHECK(parse_detokenize_request(R"({"tokens":[1],"nonsense":1})", kLimits)->unknown_fields == unknown);
  CHECK(!parse_tokenize_request(R"({"messages":[{"role":"user","content":"x"}]})", kLimits)->prompt);
  CHECK(refusal(parse_tokenize_request("{}", kLimits)) == "prompt|missing_required_parameter|400");
  CHECK(refusal(parse_detokenize_request(R"({"tokens":[1000]})", kLimits)) == "tokens|invalid_value|400");
  CHECK(refusal(parse_detokenize_request("{}", kLimits)) == "tokens|missing_required_parameter|400");
  // Two texts: neither is left out silently. Nor is what only the other kind of text has.
  const std::string messages = R"("messages":[{"role":"user","content":"x"}])";
  CHECK(refusal(parse_tokenize_request(R"({"prompt":"a",)" + messages + "}", kLimits)) == "messages|invalid_value|400");
  CHECK(refusal(parse_tokenize_request(R"({"content":"a",)" + messages + "}", kLimits)) ==
        "messages|invalid_value|400");
  CHECK(refusal(parse_tokenize_request(R"({"prompt":"a","content":"b"})", kLimits)) == "content|invalid_value|400");
  CHECK(parse_tokenize_request(R"({"prompt":null,"content":"b"})", kLimits).ok());
  using Names = std::vector<std::string>;
  CHECK(
      parse_tokenize_request(R"({"prompt":"a","tools":[],"add_generation_prompt":false})", kLimits)->no_effect_fields ==
      Names{"add_generation_prompt", "tools"});
  CHECK(parse_tokenize_request(R"({"content":"a","return_token_strs":true})", kLimits)->no_effect_fields ==
        Names{"return_token_strs"});
  CHECK(parse_tokenize_request(R"({"tools":[],"return_token_strs":true,)" + messages + "}", kLimits)
            ->no_effect_fields.empty());
}

TEST_CASE("requests: thinking as OpenRouter, SGLang, DeepSeek and GLM ask for it") {
  const auto variables = [](const char* fields) { return *chat(fields)->template_kwargs; };
  const auto low = variables(R"("reasoning":{"effort":"low"})");
  CHECK(low["reasoning_effort"] == "low");
  CHECK(low["enable_thinking"] == true);
  CHECK(variables(R"("reasoning":{"effort":"none"})")["enable_thinking"] == false);
  CHECK(variables(R"("reasoning":{"enabled":false})")["thinking"] == false);
  CHECK(variables(R"("reasoning":{"effort":"low"},"reasoning_effort":"high")")["reasoning_effort"] == "high");
  CHECK(variables(R"("thinking":{"type":"disabled"})")["enable_thinking"] == false);
  CHECK(variables(R"("thinking":{"type":"enabled","clear_thinking":false})")["clear_thinking"] == false);
  CHECK(variables(R"("thinking":{"type":"disabled"},"enable_thinking":true)")["enable_thinking"] == true);
  CHECK(!variables(R"("thinking":{"type":"adaptive"})").contains("enable_thinking"));
  CHECK(chat(R"("reasoning":{"max_tokens":7})")->max_reasoning_tokens == 7);
  CHECK(chat(R"("thinking":{"type":"enabled","budget_tokens":7},"thinking_token_budget":3)")->max_reasoning_tokens ==
        3);
  CHECK(!chat(R"("reasoning":{"exclude":true})")->include_reasoning);
  CHECK(chat(R"("reasoning":{"exclude":true},"include_reasoning":true)")->include_reasoning);
  CHECK(chat(R"("reasoning":{"effort":"low","efort":1})")->unknown_fields ==
        std::vector<std::string>{"reasoning.efort"});
  for (const char* wrong :
       {R"("thinking":{"type":"on"})", R"("thinking":{})", R"("thinking":true)", R"("reasoning":{"max_tokens":-1})",
        R"("reasoning":{"enabled":1})", R"("reasoning":"low")"}) {
    INFO(wrong);
    CHECK(refusal(chat(wrong)).ends_with("|400"));
  }
  CHECK(
      parse_tokenize_request(R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"disabled"}})", kLimits)
          ->chat.template_kwargs->at("thinking") == false);
}

TEST_CASE("requests: fields that nobody knows inside a field's object are listed too") {
  using Names = std::vector<std::string>;
  CHECK(chat(R"("stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false,"usage":1})")
            ->unknown_fields == Names{"stream_options.usage"});
  CHECK(chat(R"("response_format":{"type":"json_object","strict":true})")->unknown_fields ==
        Names{"response_format.strict"});
  CHECK(chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{},"x":1}})")
            ->unknown_fields == Names{"response_format.json_schema.x"});
  auto messages = parse_messages_request(
      R"({"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled","budget":5},
          "output_config":{"effort":"low","efort":1}})",
      kLimits, false);
  CHECK(messages->unknown_fields == Names{"thinking.budget", "output_config.efort"});
  ResponseStore store;
  auto response = parse_responses_request(
      R"({"input":"x","reasoning":{"effort":"low","summary":"auto","efort":"low"},"text":{"verbosity":"low","form":1},
          "include":["reasoning.encrypted_content","message.output"]})",
      kLimits, store);
  CHECK(response->chat.unknown_fields == Names{"text.form", "reasoning.efort", "include: message.output"});
}

TEST_CASE(
    "request table: a field that is not supported is refused when it asks for something, and not with its default") {
  int num_refused = 0;
  for (const RequestField& field : request_fields()) {
    if (field.use != FieldUse::kUnsupported) continue;
    for (const auto& [kind, base] : {std::pair{kChatRequest, R"("messages":[{"role":"user","content":"x"}])"},
                                     std::pair{kCompletionRequest, R"("prompt":"x")"}}) {
      if ((field.kinds & kind) == 0) continue;
      const auto parse = [&, chat = kind == kChatRequest](const std::string& value) {
        const std::string body = fmt::format(R"({{{},"{}":{}}})", base, field.name, value);
        return chat ? refusal(parse_chat_request(body, kLimits)) : refusal(parse_completion_request(body, kLimits));
      };
      INFO(std::string(field.name));
      const std::string refused = std::string(field.name) + "|unsupported_parameter|400";
      const bool is_number = field.type == FieldType::kNumber || field.type == FieldType::kInteger;
      const bool is_true_neutral = field.type == FieldType::kBoolean && field.neutral == 1;
      CHECK(parse(is_number                           ? "77"
                  : is_true_neutral                   ? "false"
                  : field.type == FieldType::kBoolean ? "true"
                                                      : "\"x\"") == refused);
      for (const char* nothing : {"null", "\"\"", "[]", "{}"}) CHECK(parse(nothing) == "ok");
      if (!std::isnan(field.neutral)) {
        CHECK(parse(is_true_neutral ? "true" : fmt::format("{:g}", field.neutral)) == "ok");
      } else if (field.type == FieldType::kBoolean) {
        CHECK(parse("false") == "ok");
      }
      ++num_refused;
    }
  }
  CHECK(num_refused > 100);
}

// Goal    Each field of the table is checked by its type and its bounds, and every parser reads what the table lists.
TEST_CASE("request table: types and bounds are checked for every field") {
  for (const RequestField& field : request_fields()) {
    for (const auto& [kind, base] : {std::pair{kChatRequest, R"("messages":[{"role":"user","content":"x"}])"},
                                     std::pair{kCompletionRequest, R"("prompt":"x")"}}) {
      if ((field.kinds & kind) == 0 || field.use != FieldUse::kRead || field.name == "messages" ||
          field.name == "prompt")
        continue;
      const auto parse = [&, chat = kind == kChatRequest](const std::string& value) {
        const std::string body = fmt::format(R"({{{},"{}":{}}})", base, field.name, value);
        return chat ? refusal(parse_chat_request(body, kLimits)) : refusal(parse_completion_request(body, kLimits));
      };
      INFO(std::string(field.name));
      CHECK(parse("null") == "ok");
      const bool takes_true = field.type == FieldType::kAny || field.type == FieldType::kBoolean;
      if (!takes_true) CHECK(parse("true") == std::string(field.name) + "|invalid_type|400");
      if (field.type == FieldType::kBoolean) CHECK(parse("[7]") == std::string(field.name) + "|invalid_type|400");
      if (!std::isinf(field.low) && field.low > INT32_MIN) {
        const std::string below = std::to_string(static_cast<int64_t>(field.low) - 1);
        const bool is_neutral = field.low - 1 == field.neutral;
        CHECK(parse(below) == (is_neutral ? "ok" : std::string(field.name) + "|invalid_value|400"));
      }
    }
  }
}

TEST_CASE("request table: what has no effect is listed, for the log") {
  auto request = chat(R"("user":"u","metadata":{},"guided_decoding_backend":"xgrammar","service_tier":null)");
  REQUIRE(request.ok());
  CHECK(request->no_effect_fields == std::vector<std::string>{"user", "metadata", "guided_decoding_backend"});
  CHECK(request->unknown_fields.empty());
}

TEST_CASE("request: of a repeated key the last counts; every bad key of logit_bias is named") {
  auto request = chat(R"("seed":1,"top_k":5,"seed":2)");
  REQUIRE(request.ok());
  CHECK(request->sampling.seed == 2);
  CHECK(request->sampling.sampling_top_k == 5);
  auto biased = chat(R"("logit_bias":{"a":1,"3":1,"b":2})");
  REQUIRE(!biased.ok());
  CHECK(biased.error().message == "logit_bias must have token ids as keys, got \"a\", \"b\"");
  biased = chat(R"("logit_bias":{"5000":1,"3":500,"6000":1})");
  REQUIRE(!biased.ok());
  CHECK(biased.error().message == "logit_bias contains token ids 5000, 6000, the vocabulary has ids 0 to 999");
  for (const char* wrong : {R"([[3]])", R"([[3,true]])", R"([[3.5,1]])", R"([["a",101]])", R"([3,1])", R"("3")", "7"}) {
    auto refused = chat(fmt::format(R"("logit_bias":{})", wrong));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().param == "logit_bias");
  }
  auto list = chat(R"("logit_bias":[[7,-1.5],[9,false],["Oslo",2],["x",false]])");
  REQUIRE(list.ok());
  CHECK(list->sampling.logit_bias == std::vector<std::pair<int32_t, float>>{{7, -1.5f}, {9, 0.0f}});
  CHECK(list->bad_token_ids == std::vector<int32_t>{9});
  CHECK(list->text_biases.size() == 2);
  CHECK(chat(R"("logit_bias":[[-1,1]])").error().param == "logit_bias");
  CHECK(chat(R"("logit_bias":[[5000,1]])").error().message ==
        "logit_bias contains token id 5000, the vocabulary has ids 0 to 999");
  CHECK_FALSE(chat(R"("seed":-1)")->sampling.seed.has_value());
  for (const char* effort : {"none", "low"}) {
    auto thinks = chat(fmt::format(R"("reasoning_effort":"{}")", effort));
    CHECK(thinks->template_kwargs->at("enable_thinking") == (std::string_view(effort) != "none"));
  }
  biased = chat(R"("logit_bias":{"3":500,"4":1,"5":-101})");
  REQUIRE(!biased.ok());
  CHECK(biased.error().message == "logit_bias must be in [-100, 100], got 500 for 3, -101 for 5");
}

TEST_CASE("request: a model that is greedy by default still gives n answers") {
  ParseLimits limits = kLimits;
  limits.defaults.temperature = 0.0f;
  auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"x"}],"n":2})", limits);
  REQUIRE(request.ok());
  CHECK(request->sampling.temperature == 1.0f);
  CHECK(!parse_chat_request(R"({"messages":[{"role":"user","content":"x"}],"n":2,"temperature":0})", limits).ok());
}

TEST_CASE("requests: -1 log-probabilities are the whole vocabulary, where the server allows it") {
  ParseLimits limits = kLimits;
  limits.max_logprobs = limits.vocab_size;
  auto chat_request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":-1,"prompt_logprobs":-1})", limits);
  REQUIRE(chat_request.ok());
  CHECK(chat_request->sampling.logprobs == limits.vocab_size);
  CHECK(chat_request->sampling.prompt_logprobs == limits.vocab_size);
  auto completion = parse_completion_request(R"({"prompt":"x","logprobs":-1,"echo":true})", limits);
  REQUIRE(completion.ok());
  CHECK(completion->sampling.logprobs == limits.vocab_size);
  CHECK(completion->sampling.prompt_logprobs == limits.vocab_size);
  auto picked = parse_completion_request(R"({"prompt":"x","logprob_token_ids":[3,1]})", kLimits);
  REQUIRE(picked.ok());
  CHECK(picked->sampling.logprobs == 0);
  CHECK(picked->sampling.logprob_token_ids == std::vector<int32_t>{3, 1});
}

TEST_CASE("openapi: the document and the page come from the tables") {
  const auto document = nlohmann::json::parse(openapi_json("1"));
  const auto& schema =
      document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"];
  CHECK(schema["required"] == nlohmann::json::array({"messages"}));
  CHECK(schema["properties"]["temperature"]["maximum"] == 2);
  CHECK(!schema["properties"].contains("typical_p"));
  std::ifstream file(repo_root() / "docs/api.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  INFO("spate help api > docs/api.md");
  CHECK((page == api_reference_markdown()));
}

}  // namespace spate

// Goal    --speculative-config means what vLLM's users expect, as JSON and as YAML; its errors name the key.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/test.h"
#include "base/test_support.h"
#include "cli/arguments_test_support.h"
#include "cli/find_models.h"
#include "cli/speculative_argument.h"

namespace spate {
namespace {

// $HF_HUB_CACHE while it lives.
class HubCacheVariable {
 public:
  explicit HubCacheVariable(const std::string& folder) {
    if (const char* before = std::getenv("HF_HUB_CACHE")) before_ = before;
    ::setenv("HF_HUB_CACHE", folder.c_str(), 1);
  }
  ~HubCacheVariable() { before_ ? ::setenv("HF_HUB_CACHE", before_->c_str(), 1) : ::unsetenv("HF_HUB_CACHE"); }
  HubCacheVariable(const HubCacheVariable&) = delete;
  HubCacheVariable& operator=(const HubCacheVariable&) = delete;

 private:
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("arguments: --speculative-config is JSON, or YAML in the file") {
  const auto args = parse({"serve", "m", "--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 5})"});
  REQUIRE(args.ok());
  const SpeculativeConfig ngram = parse_speculative_config(args->model.speculative_config).value();
  CHECK(ngram.method == SpeculativeMethod::kNgram);
  CHECK(ngram.num_speculative_tokens == 5);

  const TempDir dir;
  const std::string file = write_file(
      dir, "spec.yaml", "speculative-config:\n  method: reference\n  prompt_lookup_max: 1\nport: 8123\n");
  const auto from_file = parse({"serve", "m", "--config", file.c_str()});
  REQUIRE_MESSAGE(from_file.ok(), from_file.status().message());
  CHECK(from_file->serve.port == 8123);
  const SpeculativeConfig reference = parse_speculative_config(from_file->model.speculative_config).value();
  CHECK(reference.method == SpeculativeMethod::kReference);
  CHECK(reference.prompt_lookup_min == 1);
  CHECK(reference.prompt_lookup_max == 1);

  CHECK(parse_speculative_config("")->method == SpeculativeMethod::kNone);

  const auto message = [](const std::string& text) {
    return std::string(parse_speculative_config(text).status().message());
  };
  for (const char* text :
       {R"({"method": "ngram"}{"num_speculative_tokens": 100})", R"({"method": "ngram"}, {"model": "m"})",
        "method: ngram\n---\nnum_speculative_tokens: 100", R"({"method": "ngram"} x)"}) {
    CHECK(message(text).starts_with("--speculative-config must be one object, got more behind it: "));
  }
  CHECK(parse_speculative_config("---\n{\"method\": \"ngram\"}  # look-ups\n").ok());
  CHECK(message("{method: ngram, method: reference}") == "--speculative-config: the field method comes twice");
  CHECK(message("{}") == "--speculative-config needs the field method: ngram, reference, draft_model, mtp or eagle");
  CHECK(message(R"({"method": "ngarm"})") ==
        "--speculative-config: method must be ngram, reference, draft_model, mtp or eagle, got 'ngarm'");
  CHECK(parse_speculative_config(R"({"method": "mtp", "num_speculative_tokens": 2})")->method == SpeculativeMethod::kMtp);
  CHECK(parse_speculative_config(R"({"method": "deepseek_mtp"})")->method == SpeculativeMethod::kMtp);
  CHECK(parse_speculative_config(R"({"method": "ernie_mtp"})")->method == SpeculativeMethod::kMtp);
  const SpeculativeConfig eagle = parse_speculative_config(R"({"method": "eagle3", "model": "head"})").value();
  CHECK(eagle.method == SpeculativeMethod::kEagle);
  CHECK(eagle.model == "head");
  CHECK(message(R"({"method": "eagle"})") == "--speculative-config: method eagle needs the field model: a folder");
  CHECK(message(R"({"method": "eagle", "model": "head", "num_speculative_tokens": 17})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 17");
  CHECK(message(R"({"method": "medusa"})") ==
        "--speculative-config: method medusa is not built; there are ngram, reference, draft_model, mtp and eagle");
  CHECK(message(R"({"method": "mtp", "num_speculative_tokens": 100})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 100");
  CHECK(message(R"({"method": "mtp", "model": "m"})") ==
        "--speculative-config: model is a field of the methods draft_model and eagle, got it with mtp");
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": 0})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 0");
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": "many"})") ==
        "--speculative-config: num_speculative_tokens must be a whole number, got 'many'");
  CHECK(message(R"({"method": "ngram", "ngram_size": 2})").find("unknown field 'ngram_size'") != std::string::npos);
  // What vLLM and TensorRT-LLM publish: it works, or is refused with the field and the reason.
  CHECK(parse_speculative_config(R"({"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_max": 4})")
            ->method == SpeculativeMethod::kNgram);
  CHECK(parse_speculative_config(R"({"method": "[ngram]", "num_speculative_tokens": 5})")->method ==
        SpeculativeMethod::kNgram);
  CHECK(parse_speculative_config(R"({"method": "glm4_moe_mtp", "num_speculative_tokens": 1})")->method ==
        SpeculativeMethod::kMtp);
  for (const char* method :
       {"suffix", "mlp_speculator", "dflash", "mimo_mtp", "qwen3_next_mtp", "extract_hidden_states"}) {
    CHECK(message(fmt::format(R"({{"method": "{}", "num_speculative_tokens": 3}})", method)) ==
          fmt::format(
              "--speculative-config: method {} is not built; there are ngram, reference, draft_model, mtp and eagle",
              method));
  }
  CHECK(message(R"({"model": "facebook/opt-125m", "num_speculative_tokens": 5})") ==
        "--speculative-config needs the field method: ngram, reference, draft_model, mtp or eagle");
  CHECK(
      message(
          R"({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2,
                    "method": "eagle"})") ==
      "--speculative-config: draft_tensor_parallel_size is not a field: a draft model is sharded as the model is");
  CHECK(message(R"({"method": "ngram", "disable_by_batch_size": 4})") ==
        "--speculative-config: disable_by_batch_size is not a field: a controller runs as many drafts as pay, at any "
        "batch");
  CHECK(message(R"({"decoding_type": "MTP", "max_draft_len": 3})") ==
        "--speculative-config: decoding_type is not a field: it is method here");
  for (const char* number : {"3.5", "null", "[3]", "{}", "99999999999", "\"three\"", "true"}) {
    CHECK(message(fmt::format(R"({{"method": "ngram", "num_speculative_tokens": {}}})", number))
              .find("num_speculative_tokens must be a whole number") != std::string::npos);
  }
  CHECK(message(R"({"method": "ngram", "num_speculative_tokens": -1})") ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got -1");
  CHECK(parse_speculative_config(R"({"method": "ngram", "num_speculative_tokens": "3"})")->num_speculative_tokens == 3);
  const SpeculativeConfig relaxed =
      parse_speculative_config(R"({"method": "mtp", "use_relaxed_acceptance_for_thinking": true, "relaxed_topk": 10,
                                   "relaxed_delta": 0.6, "relaxed_by_default": false})")
          .value();
  CHECK(relaxed.use_relaxed_acceptance_for_thinking);
  CHECK(relaxed.relaxed_topk == 10);
  CHECK(relaxed.relaxed_delta == 0.6f);
  CHECK_FALSE(relaxed.relaxed_by_default);
  CHECK(message(R"({"method": "mtp", "relaxed_top_n": 10})") ==
        "--speculative-config: relaxed_top_n is not a field: it is relaxed_topk here");
  CHECK(
      message(
          R"({"method": "mtp", "use_relaxed_acceptance_for_thinking": true, "relaxed_topk": 10, "relaxed_delta": ".nan"})") ==
      "--speculative-config: relaxed_delta must be above 0 and at most 1, got nan");
  for (const char* text : {"[]", "null", "1", "\"ngram\"", "{", "{\"method\":", "\x01", "{\"method\": null}",
                           "{\"method\": [\"ngram\"]}"}) {
    CHECK(message(text).find("--speculative-config") == 0);
  }
  CHECK(message("ngram").find("must be an object") != std::string::npos);
  CHECK(message("{[a]: 1}") == "--speculative-config: a key must be a word, got [a]");
  CHECK(message("{").find("--speculative-config: ") == 0);
}

TEST_CASE("arguments: the draft model is found in the Hugging Face cache, whether JSON or YAML names it") {
  const TempDir dir;
  const std::filesystem::path hub = dir.path() / "hub: #1";  // quoted in YAML
  const std::filesystem::path snapshot = hub / "models--acme--tiny" / "snapshots" / "0123abcd";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(hub / "models--acme--tiny" / "refs");
  std::ofstream(snapshot / "config.json") << "{}";
  std::ofstream(hub / "models--acme--tiny" / "refs" / "main") << "0123abcd";
  const HubCacheVariable cache(hub.string());
  const std::string file = write_file(dir, "draft.yaml",
                                      "speculative-config:\n  method: draft_model\n  model: acme/tiny\n"
                                      "  num_speculative_tokens: \"3\"\n");
  const auto from_file = parse({"serve", "m", "--config", file.c_str()});
  REQUIRE_MESSAGE(from_file.ok(), from_file.status().message());
  for (const std::string& text :
       {std::string(R"({"method": "draft_model", "model": "acme/tiny", "num_speculative_tokens": 3})"),
        std::string("{method: draft_model, model: acme/tiny, num_speculative_tokens: 3}"),
        std::string("method: draft_model\nmodel: acme/tiny\nnum_speculative_tokens: 3\n"),
        from_file->model.speculative_config}) {
    INFO(text);
    ModelArguments arguments;
    arguments.speculative_config = text;
    REQUIRE(find_models(arguments).ok());
    const auto config = parse_speculative_config(arguments.speculative_config);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config->model == snapshot.string());
    CHECK(config->method == SpeculativeMethod::kDraftModel);
    CHECK(config->num_speculative_tokens == 3);
  }
  ModelArguments missing;
  missing.speculative_config = "{method: eagle, model: acme/none}";
  CHECK(find_models(missing).message().starts_with("--speculative-config: model: 'acme/none' does not exist here"));
}

}  // namespace spate

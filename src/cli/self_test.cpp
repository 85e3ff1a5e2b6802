#include "cli/self_test.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "llm/loaded_model.h"

namespace spate {
namespace {

constexpr int kVocabSize = 512, kNumPrompts = 3, kPromptLen = 70, kOutputLen = 6;

struct TinyModel {
  std::string_view name;
  std::string_view config;  // config.json
};
constexpr TinyModel kModels[] = {
    {"dense", R"({"model_type": "qwen3", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 384,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
      "max_position_embeddings": 128})"},
    {"experts", R"({"model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 384,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
      "max_position_embeddings": 128, "num_experts": 8, "num_experts_per_tok": 8, "moe_intermediate_size": 128,
      "norm_topk_prob": true})"},
    {"latent attention", R"({"model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 256,
      "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
      "max_position_embeddings": 128, "q_lora_rank": 96, "kv_lora_rank": 128, "qk_nope_head_dim": 64,
      "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 8,
      "n_group": 1, "topk_group": 1, "moe_intermediate_size": 128, "first_k_dense_replace": 1})"}};

// A folder with a config.json, as load_model() wants it; gone with the object.
class ConfigFolder {
 public:
  static Result<std::unique_ptr<ConfigFolder>> create(std::string_view config) {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "spate-self-test-XXXXXX").string();
    if (error || ::mkdtemp(name.data()) == nullptr) return unavailable("self-test: {} cannot be made", name);
    auto folder = std::unique_ptr<ConfigFolder>(new ConfigFolder(name));
    std::ofstream out(folder->path_ / "config.json");
    out << config;
    out.close();
    if (!out) return unavailable("self-test: {} cannot be written", (folder->path_ / "config.json").string());
    return folder;
  }
  ~ConfigFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ConfigFolder(const ConfigFolder&) = delete;
  ConfigFolder& operator=(const ConfigFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit ConfigFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

Result<std::vector<std::vector<OfflineResult>>> run_model(const std::string& folder, const SelfTestCase& one,
                                                          const BackEnd& back_end, const DeviceOptions& device,
                                                          DType dtype) {
  LlmConfig llm{.model = folder, .dummy_weights = true, .seed = 7};
  llm.device = back_end.name;
  llm.device_options = device;
  llm.act_dtype = llm.kv_dtype = dtype;
  ASSIGN_OR_RETURN(llm.quantization, parse_quantization(one.quantization));
  llm.max_model_len = 128;
  llm.max_num_seqs = kNumPrompts;
  llm.max_num_batched_tokens = 64;  // prompts come in pieces
  llm.kv_cache_bytes = 4 << 20;
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, load_model(llm));
  std::vector<OfflineRequest> requests(kNumPrompts);
  Rng rng(11);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int t = 0; t < kPromptLen - static_cast<int>(i); ++t) {
      requests[i].prompt_token_ids.push_back(static_cast<int32_t>(rng.below(kVocabSize)));
    }
    SamplingParams& sampling = requests[i].sampling;
    sampling.temperature = 0;
    sampling.max_tokens = kOutputLen;
    sampling.ignore_eos = true;
    sampling.logprobs = 0;
    sampling.prompt_logprobs = 0;
  }
  model->engine->start();
  return run_offline(*model->engine, {}, std::move(requests));
}

class Distance {
 public:
  void add(const TokenLogprobs& a, const TokenLogprobs& b) {
    const double difference = a.rank > 0 && b.rank > 0 ? a.logprob - b.logprob : NAN;
    sum_ += difference * difference;
    ++count_;
  }
  double value() const { return std::sqrt(sum_ / count_); }
  int count() const { return count_; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

}  // namespace

std::vector<SelfTestCase> self_test_cases() {
  std::vector<SelfTestCase> cases;
  for (const TinyModel& model : kModels) {
    for (const std::string_view quantization : {"none", "int8", "int4"}) cases.push_back({model.name, quantization});
  }
  return cases;
}

Result<SelfTestResult> SelfTest::run(const SelfTestCase& one, const BackEnd& back_end, const DeviceOptions& device) {
  const TinyModel* model = std::ranges::find(kModels, one.model, &TinyModel::name);
  CHECK(model != std::end(kModels), "no model \"{}\"", one.model);
  ASSIGN_OR_RETURN(const std::unique_ptr<ConfigFolder> folder, ConfigFolder::create(model->config));
  const std::string path = folder->path().string();
  Answers& expected = expected_[{one.model, one.quantization}];
  if (expected.empty()) {
    ASSIGN_OR_RETURN(expected, run_model(path, one, oracle_back_end(), {}, DType::kF32));
  }
  ASSIGN_OR_RETURN(const Answers actual, run_model(path, one, back_end, device, DType::kBf16));
  Distance distance;
  for (size_t i = 0; i < expected.size(); ++i) {
    const OfflineResult &e = expected[i][0], &a = actual[i][0];
    for (size_t t = 0; t < e.prompt_logprobs.size(); ++t) distance.add(a.prompt_logprobs.at(t), e.prompt_logprobs[t]);
    // Behind the first other token, of a near-tie, the texts are not the same.
    for (size_t t = 0; t < e.token_ids.size() && a.token_ids.at(t) == e.token_ids[t]; ++t) {
      distance.add(a.logprobs.at(t), e.logprobs[t]);
    }
  }
  return SelfTestResult{.distance = distance.value(),
                        .max_distance = one.quantization == "none" ? 0.02 : 0.03,
                        .num_compared = distance.count()};
}

}  // namespace spate

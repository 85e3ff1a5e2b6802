// quantized_experts_test.cpp
//
// Goal     A directory that quantize_model() writes of a model with experts is served: its experts stay codes in
// memory, and
//          it knows what its source knows. Layers for multi-token prediction, which stay floats, still draft.
// Method   models/mini-ernie (softmax, shared experts) and models/mini-deepseek (sigmoid, groups of experts, latent
//          attention, drafts) on the CPU: perplexity on stories, within 0.5 % (int8) and 3 % (int4) of BF16.
#include <algorithm>
#include <string>
#include <tuple>

#include "backend/cpu/cpu_device.h"
#include "base/test_support.h"
#include "llm/story_perplexity.h"
#include "quantizer/quantize_model.h"

#include "base/test.h"

namespace spate {
namespace {

namespace fs = std::filesystem;

LlmConfig on_cpu(const fs::path& dir) { return story_config("cpu", dir, "none"); }

bool summary_has(const LoadedModel& model, std::string_view text) {
  return std::any_of(model.summary.begin(), model.summary.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

// Of the drafts of the model's own layer, while it continues stories.
double share_accepted(const fs::path& dir) {
  LlmConfig llm = on_cpu(dir);
  llm.speculative = {.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 1, .adaptive = false};
  const auto loaded = load_model(llm);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  LoadedModel& model = **loaded;
  std::vector<OfflineRequest> requests;
  for (const std::string& story : stories(8)) {
    OfflineRequest& request = requests.emplace_back();
    request.prompt_token_ids = model.tokenizer->encode(story.substr(0, story.size() / 2));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 32;
  }
  model.engine->start();
  const auto results = run_offline(*model.engine, model.eos_token_ids, std::move(requests));
  const auto stats = model.engine->stats();
  model.engine->stop();
  REQUIRE_MESSAGE(results.ok(), results.status().to_string());
  REQUIRE(stats.num_drafts > 0);
  return static_cast<double>(stats.num_drafts_accepted) / static_cast<double>(stats.num_drafts);
}

TEST_CASE("a quantised directory of a model with experts is served") {
  for (const char* name : {"mini-ernie", "mini-deepseek"}) {
    CAPTURE(std::string(name));
    const fs::path model_dir = repo_root() / "models" / name;
    const bool has_drafts = load_model_config(model_dir).value().num_mtp_layers > 0;
    const double bf16_accepted = has_drafts ? share_accepted(model_dir) : 0;
    const auto source = load_model(on_cpu(model_dir));
    REQUIRE_MESSAGE(source.ok(), source.status().to_string());
    const int64_t bf16_bytes = (*source)->weight_bytes;
    const double bf16 = story_perplexity(**source, 16);
    for (const auto& [spec, format, allowed] : {std::tuple{integer_spec(Codes::kInt8), "int8", 0.005},
                                                {integer_spec(Codes::kInt4, 64, false, true), "int4-g64", 0.03}}) {
      CAPTURE(std::string(format));
      const TempDir dir;
      const fs::path out = dir.path() / "out";
      const auto device = make_cpu_device({.num_threads = 2}).value();
      const auto report = quantize_model(model_dir, out, *device, {.spec = spec, .num_threads = 2});
      REQUIRE_MESSAGE(report.ok(), report.status().to_string());
      const auto loaded = load_model(on_cpu(out));
      REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
      double saved_bytes = 0;  // how much smaller all matrices are as codes, without scales; experts are half of it
      for (const MatrixReport& matrix : report->matrices) {
        saved_bytes +=
            static_cast<double>(matrix.num_rows * matrix.in_features) * (spec.codes == Codes::kInt8 ? 1 : 1.5);
      }
      CHECK(static_cast<double>(bf16_bytes - (*loaded)->weight_bytes) > 0.8 * saved_bytes);
      CHECK(summary_has(**loaded, fmt::format("weights of {} stay so", format)));
      const double perplexity = story_perplexity(**loaded, 16);
      CHECK(perplexity != bf16);
      CHECK(perplexity < bf16 * (1 + allowed));
      if (has_drafts) CHECK(share_accepted(out) > bf16_accepted - 0.15);
    }
  }
}

}  // namespace
}  // namespace spate

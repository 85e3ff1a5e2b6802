// Goal    Several models never get more memory together than there is; who asked for a size gets it; the error of one that does
//         not fit says what is free, what it needs and what to lower.
#include "llm/memory_share.h"

#include <numeric>

#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr int64_t kMiB = 1 << 20;

ModelNeed need(const char* name, int64_t fixed_mib, int64_t asked_mib = 0) {
  return {.name = name,
          .memory = "cpu",
          .free_bytes = 1000 * kMiB,
          .memory_share = 0.9,
          .fixed_bytes = fixed_mib * kMiB,
          .least_kv_bytes = 10 * kMiB,
          .most_kv_bytes = 2000 * kMiB,
          .kv_cache_bytes = asked_mib * kMiB};
}

}  // namespace

TEST_CASE("memory share: what was asked for comes first, the rest in equal parts") {
  const auto shares = share_memory(std::vector{need("a", 100), need("b", 200, 150), need("c", 50)});
  REQUIRE(shares.ok());
  CHECK(shares->kv_cache_bytes == std::vector<int64_t>{200 * kMiB, 150 * kMiB, 200 * kMiB});
  CHECK(shares->lines.size() == 4);
  CHECK(shares->lines[0] == "memory (cpu): 1000.0 MiB are free, 900.0 MiB may be used");
  CHECK(shares->lines[2] == "  b: 200.0 MiB for weights and workspace, 150.0 MiB of KV cache (kv-cache-memory)");
}

TEST_CASE("memory share: what one cannot use goes to the others, and never more than there is is given") {
  ModelNeed small = need("small", 100);
  small.most_kv_bytes = 40 * kMiB;
  const auto shares = share_memory(std::vector{need("a", 100), small, need("c", 100)});
  REQUIRE(shares.ok());
  CHECK(shares->kv_cache_bytes == std::vector<int64_t>{280 * kMiB, 40 * kMiB, 280 * kMiB});
  for (int64_t fixed = 1; fixed < 290; fixed += 7) {
    const auto some = share_memory(std::vector{need("a", fixed), need("b", 2 * fixed, fixed % 3 == 0 ? 20 : 0)});
    REQUIRE(some.ok());
    const int64_t kv_bytes = std::accumulate(some->kv_cache_bytes.begin(), some->kv_cache_bytes.end(), int64_t{0});
    CHECK(kv_bytes + 3 * fixed * kMiB <= 900 * kMiB);
  }
}

TEST_CASE("memory share: memories are shared apart, and a mock takes none") {
  ModelNeed on_gpu = need("gpu", 100);
  on_gpu.memory = "cuda";
  const auto shares = share_memory(std::vector{need("a", 100), on_gpu, ModelNeed{.name = "mock"}});
  REQUIRE(shares.ok());
  CHECK(shares->kv_cache_bytes == std::vector<int64_t>{800 * kMiB, 800 * kMiB, 0});
}

TEST_CASE("memory share: a model that does not fit") {
  const auto message = [](std::vector<ModelNeed> needs) { return std::string(share_memory(needs).status().message()); };
  CHECK(message({need("a", 500), need("b", 395)}) ==
        "memory (cpu): the model b does not fit beside the others: it needs 395.0 MiB for weights and workspace and 10.0 MiB of "
        "KV cache; of the 900.0 MiB that are free and may be used, 390.0 MiB are left. Lower max-model-len, max-num-seqs or "
        "max-num-batched-tokens, quantize a model, or serve one less");
  CHECK(message({need("a", 100, 700), need("b", 200)}).find("Lower kv-cache-memory of a (now 700.0 MiB), or lower max-model-len") !=
        std::string::npos);
  CHECK(message({need("a", 950)}).find("the model a does not fit: it needs 950.0 MiB") != std::string::npos);
}

TEST_CASE("memory share: the need of a model is seen without reading its weights") {
  LlmConfig llm{.model = repo_root() / "models/mini-qwen3", .device = "cpu"};
  const auto alone = model_need("mini", llm);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  CHECK(alone->memory == "cpu");
  CHECK(alone->free_bytes > 100 * kMiB);
  CHECK(alone->fixed_bytes > kMiB);
  CHECK(alone->least_kv_bytes < alone->most_kv_bytes);
  llm.max_model_len = 64;
  llm.max_num_seqs = 2;
  const auto limited = model_need("mini", llm);
  CHECK(limited->most_kv_bytes == 2 * limited->least_kv_bytes);
  CHECK(limited->least_kv_bytes == 4 * alone->least_kv_bytes);  // blocks of 16
}

TEST_CASE("memory share: what drafts by the model's hidden states is counted") {
  const auto need_of = [](const LlmConfig& llm) {
    const auto need = model_need("m", llm);
    REQUIRE_MESSAGE(need.ok(), need.status().message());
    return *need;
  };
  const std::string eagle = repo_root() / "test/goldens/eagle";
  LlmConfig llm{.model = eagle + "/target", .device = "cpu"};
  const ModelNeed alone = need_of(llm);
  llm.speculative.method = SpeculativeMethod::kEagle;
  llm.speculative.model = eagle + "/head";
  const ModelNeed with_head = need_of(llm);
  // Of a block of 16 tokens three hidden states of 48 elements in bf16 each; and one more layer.
  CHECK(with_head.least_kv_bytes - alone.least_kv_bytes >= 16 * 3 * 48 * 2 + alone.least_kv_bytes / 6);
  CHECK(with_head.fixed_bytes > alone.fixed_bytes + 56 * 48 * 2);
  llm.speculative.model = eagle + "/target";
  CHECK(model_need("m", llm).status().message().find("needs LlamaForCausalLMEagle3") != std::string::npos);

  llm = {.model = repo_root() / "models/mini-deepseek", .device = "cpu"};
  const ModelNeed deepseek = need_of(llm);
  llm.speculative.method = SpeculativeMethod::kMtp;
  CHECK(need_of(llm).fixed_bytes > deepseek.fixed_bytes);
  CHECK(need_of(llm).least_kv_bytes > deepseek.least_kv_bytes);
}

}  // namespace spate

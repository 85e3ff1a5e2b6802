// Goal    spate bench kernel covers the op catalogue, with calls that the ops accept and work that is counted.
// Method  All cases of a tiny model on the CPU, one copy of the operands, each called twice: check_params() inside the
// ops
//         ends the program on a wrong shape. Bytes and operations against figures computed by hand.
#include "cli/kernel_cases.h"

#include <map>
#include <set>

#include "backend/cpu/cpu_device.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate {

TEST_CASE("kernel cases: every op of the catalogue, at sizes that it takes") {
  const auto device = make_cpu_device({.num_threads = 2}).value();
  const auto stream = device->create_stream();
  const ModelConfig config = load_model_config(repo_root() / "test/goldens/model/qwen3_tied_sharded").value();
  for (const DType act_dtype : {DType::kBf16, DType::kF32}) {
    std::set<std::string> ops;
    std::map<std::string, KernelCase> by_name;
    const KernelCaseOptions options{.act_dtype = act_dtype, .kv_dtype = act_dtype, .cold_bytes = 0};
    const Status status = for_each_kernel_case(*device, *stream, config, options, [&](const KernelCase& one) {
      ops.insert(one.name.substr(0, one.name.find('/')));
      CHECK(one.num_copies == 1);
      for (int i = 0; i < 2; ++i) one.call(0);
      CHECK_MESSAGE(by_name.emplace(one.name, one).second, one.name);
    });
    REQUIRE_MESSAGE(status.ok(), status.to_string());
    CHECK(ops == std::set<std::string>{"add", "add_rms_norm", "apply_updates", "attention_paged", "begin_step", "embedding",
                                       "finish_step", "gather_rows", "kv_copy_blocks", "kv_write", "linear",
                                       "linear_silu_and_mul", "logprobs", "qk_norm_rope_kv_write", "rms_norm", "rope",
                                       "sample", "scatter_rows", "silu_and_mul"});
    const int64_t element = dtype_bytes(act_dtype);
    const std::string format = act_dtype == DType::kF32 ? "f32" : "bf16";
    const int64_t in_features = config.num_heads * config.head_dim;
    const auto o = by_name.find(fmt::format("linear/{}/o-{}x{}/m32", format, config.hidden_size, in_features));
    REQUIRE(o != by_name.end());
    CHECK(o->second.ops == 2.0 * 32 * config.hidden_size * in_features);
    CHECK(o->second.bytes == element * (config.hidden_size * in_features + 32 * (in_features + config.hidden_size)));
    const auto decode = by_name.find(fmt::format("attention_paged/{}/decode-160/batch32", format));
    REQUIRE(decode != by_name.end());
    CHECK(decode->second.bytes ==
          element * config.head_dim * (32 * 160 * 2 * config.num_kv_heads + 2 * 32 * config.num_heads));
    CHECK(decode->second.ops == 4.0 * 32 * 160 * config.num_heads * config.head_dim);
  }
}

TEST_CASE("kernel cases: a model with latent attention") {
  const auto device = make_cpu_device({.num_threads = 2}).value();
  const auto stream = device->create_stream();
  const ModelConfig config = load_model_config(repo_root() / "models/mini-deepseek").value();
  const int64_t rank = config.latent.kv_lora_rank, width = rank + config.latent.qk_rope_head_dim;
  for (const DType kv_dtype : {DType::kBf16, DType::kI8}) {
    std::map<std::string, KernelCase> by_name;
    const KernelCaseOptions options{.kv_dtype = kv_dtype, .cold_bytes = 0, .filter = "attention_"};
    REQUIRE(for_each_kernel_case(*device, *stream, config, options, [&](const KernelCase& one) {
              one.call(0);
              by_name.emplace(one.name, one);
            }).ok());
    CHECK(by_name.size() == 2);
    const int64_t heads = config.num_heads;
    const auto one =
        by_name.find(fmt::format("attention_latent/{}/decode-{}x160/batch32", dtype_name(kv_dtype), heads));
    REQUIRE(one != by_name.end());
    CHECK(one->second.bytes ==
          32 * (160 * (kv_dtype == DType::kI8 ? width + 8 : 2 * width) + 2 * heads * (width + rank)));
    CHECK(one->second.ops == 2.0 * 32 * 160 * heads * (width + rank));
  }
}

TEST_CASE("kernel cases: the filter chooses by name, copies fill the asked bytes") {
  const auto device = make_cpu_device({.num_threads = 1}).value();
  const auto stream = device->create_stream();
  const ModelConfig config = load_model_config(repo_root() / "test/goldens/model/qwen3_tied_sharded").value();
  int num_cases = 0;
  const KernelCaseOptions options{.cold_bytes = 1 << 20, .filter = "/down-"};
  REQUIRE(for_each_kernel_case(*device, *stream, config, options, [&](const KernelCase& one) {
            ++num_cases;
            CHECK(one.name.find("/down-") != std::string::npos);
            CHECK(one.num_copies > 1);
            for (int64_t i = 0; i < one.num_copies; ++i) one.call(i);
          }).ok());
  CHECK(num_cases == 3);
  num_cases = 0;
  const KernelCaseOptions large{.cold_bytes = 0, .has_large_sizes = true, .filter = "/down-"};
  REQUIRE(for_each_kernel_case(*device, *stream, config, large, [&](const KernelCase&) { ++num_cases; }).ok());
  CHECK(num_cases == 8);
}

}  // namespace spate

// LlmConfig: what load_model() needs to know, typed. The command line fills it (cli/llm_arguments.h); a library may
// too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "base/dtype.h"
#include "core/pooling.h"
#include "core/speculative_config.h"
#include "mock/mock_script.h"
#include "quant/quantization.h"
#include "weights/weight_cache.h"

namespace spate {

struct PoolingOverride {
  std::optional<Pooling> pooling;
  std::optional<bool> normalize;
};

struct LlmConfig {
  // The model. A directory in the layout of Hugging Face, or a *.gguf file.
  std::string model;
  std::string name;                   // in answers and the log; empty: the last component of `model`
  std::string tokenizer;              // folder of tokenizer files or *.gguf; empty: the model's
  std::string chat_template;          // file that replaces the model's template, or the template itself; empty: the model's
  bool dummy_weights = false;         // seeded random weights from the config alone
  bool use_generation_config = true;  // false: generation_config.json gives eos ids only
  uint64_t seed = 0;                  // of dummy weights
  PoolingOverride pooling;            // what the model's files do not say, or say otherwise

  // Where it runs, and in what numbers.
  std::string device = "auto";   // a name of backend/registry, auto, or mock
  DeviceOptions device_options;  // num_threads is of all ranks together
  MockScript mock;               // of device mock
  bool pin_threads = false;
  int tensor_parallel_size = 1;
  double collective_time_limit_s = 60;  // how long a rank waits for another
  DType act_dtype = DType::kBf16;
  DType kv_dtype = DType::kBf16;
  Quantization quantization;
  WeightCacheOptions weight_cache;  // packed weights that outlive the process

  // Limits. 0: the back-end's default, or what fits.
  int64_t max_model_len = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int kv_block_size = 16;
  int64_t kv_cache_bytes = 0;      // of all ranks together
  int64_t max_kv_cache_bytes = 0;  // the same, where it is computed: a share beside other models; 0: no such limit
  double device_memory_share = 0;  // of the free memory of a device that has memory of its own

  // The scheduler (core/engine_config.h).
  int max_num_waiting = 1024;
  int long_prefill_token_threshold = 0;
  int max_prefill_stall_ms = -1;  // -1: the back-end's default
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;
  SpeculativeConfig speculative;
};

}  // namespace spate

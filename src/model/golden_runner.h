// Runs the models of test/goldens/model on a back-end and compares them with what transformers computed
// (tools/goldens/make_model_goldens.py). A library, so that the unit test (reference, cpu) and spate-goldens (any
// back-end) are the same test.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/dtype.h"
#include "base/status.h"
#include "quant/quantization.h"

namespace spate {

// In which steps the sequences of a golden run. The result must be the same.
enum class GoldenSchedule {
  kOneByOne,  // each sequence alone: its prompt whole, then a token a step
  kBatched,   // all prompts in one step, then a token of each
  kChunked,   // sequences enter one after the other; prompts in chunks of odd sizes beside the decode tokens of others
};
std::string_view golden_schedule_name(GoldenSchedule schedule);

struct GoldenRun {
  DType act_dtype = DType::kF32;  // kF32 or kBf16: of weights, activations and KV
  int tensor_parallel_size = 1;   // ranks are threads, with the collectives of one process
  GoldenSchedule schedule = GoldenSchedule::kOneByOne;
  Quantization quantization;    // of weights that the checkpoint has as floats; no tolerance is meant for it
  bool integer_weights = true;  // codes of a quantised checkpoint stay codes; else they become floats when loaded
  ActivationDType activations = ActivationDType::kAuto;  // of products with such codes
};

struct GoldenResult {
  double hidden_error = 0;  // largest relative L2 distance over sequences and places
  double logits_error = 0;
  std::vector<std::string> failures;  // "seq2 hidden.mid: relative L2 0.013, at most 1e-05"; empty: passed
};

// The folders below `root` that hold a goldens.safetensors, sorted.
std::vector<std::filesystem::path> golden_folders(const std::filesystem::path& root);

// What open_weights() and load_model_config() take: the folder, or a GGUF file in it (the last of a split one).
std::filesystem::path golden_model_path(const std::filesystem::path& folder);

// Tolerances, as relative L2 distances of each tensor: those that are stored with the golden of a quantised checkpoint; else f32
// 1e-5 (sums in another order; measured 1e-6); bf16 twice the
// distance that transformers' own bf16 has from its f32, which is stored with the golden: it rounds in the same places.
Result<GoldenResult> run_golden(const std::filesystem::path& folder, DeviceFactory factory, const DeviceOptions& device,
                                const GoldenRun& run);

}  // namespace spate

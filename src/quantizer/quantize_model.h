// quantize_model: a Hugging Face directory of floats to one of 8- or 4-bit integers (quantizer/packed_layout.h).
//
// Layer by layer: run the layer as it is on the calibration tokens, quantise its matrices, run it again as it is now;
// the next layer is calibrated on what that gives, so that later layers make good for the errors of earlier ones. One
// layer is in memory at a time, and the hidden states of the calibration tokens.
//
// Experts need a tensor each. One is calibrated on the tokens that its layer's router sends to it; without any it is
// rounded to nearest. Matrices that no product reads stay floats: routers, latent attention, layers for multi-token
// prediction.
//
// The output appears at once under its name when all of it is on the disk; whatever ends the run before leaves nothing.
//
// Belongs to the calling thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "quant/weight_format.h"

namespace spate {

enum class QuantizeMethod { kRtn, kAwq, kGptq };

struct QuantizeOptions {
  WeightSpec spec;  // of the matrices inside the layers: kInt8 or kInt4
  QuantizeMethod method = QuantizeMethod::kRtn;
  bool act_order = false;            // GPTQ
  bool quantize_vocabulary = false;  // embedding table and lm_head to int8, one scale a row; else they stay as they are
  int num_threads = 1;               // of the algorithms; the device has its own
  // Token ids of texts like those that the model is to see. AWQ and GPTQ need them; for RTN they serve the report. With
  // experts their inputs and a layer of floats are in memory too. Longer sequences than kMaxCalibrationLen are cut off.
  std::vector<std::vector<int32_t>> calibration;
};
constexpr int64_t kMaxCalibrationLen = 2048;

struct MatrixReport {
  std::string name;  // "model.layers.0.mlp.up_proj"
  int64_t num_rows = 0, in_features = 0;
  double weight_error = 0;         // |W' - W| / |W|, of the matrix as it was to be rounded
  double output_error = -1;        // |x W'^T - x W^T| / |x W^T| over calibration inputs; -1 without
  int64_t num_expert_tokens = -1;  // of a matrix of an expert: calibration tokens that it saw; -1: another, or no text
};

struct QuantizeReport {
  std::vector<MatrixReport> matrices;
  int64_t num_calibration_tokens = 0;
  int64_t bytes_before = 0, bytes_after = 0;  // of all tensors
};

// progress: 0 .. 1. stop: asked now and then; true ends the run with kCancelled. Errors name the file or the tensor.
Result<QuantizeReport> quantize_model(const std::filesystem::path& model_dir, const std::filesystem::path& out_dir,
                                      Device& device, const QuantizeOptions& options,
                                      const std::function<void(double)>& progress = {},
                                      const std::function<bool()>& stop = {});

}  // namespace spate

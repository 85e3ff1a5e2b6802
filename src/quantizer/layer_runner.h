// LayerRunner: runs one layer of a model in f32 on given hidden states and shows what its matrices are given. The layer
// is a Model of one layer (LayerSource); two ops of its table are replaced: `embedding` gives the hidden states, and a
// product shows its input first.
//
// Belongs to one thread; the device outlives it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "model/model.h"
#include "parallel/communicator.h"
#include "quantizer/layer_source.h"

namespace spate {

// Inputs of matrices, in the order in which a layer computes. Matrices that share one are quantised with it.
enum class LinearInput { kQkv, kO, kGateUp, kDown };
constexpr int kNumLinearInputs = 4;
struct LinearGroup {
  LinearInput input;
  std::vector<std::string_view> matrices;  // short names without ".weight": "self_attn.q_proj"
};
const std::array<LinearGroup, kNumLinearInputs>& linear_groups();

// Whole sequences that run in one step, and what goes into a layer for them.
struct HiddenBatch {
  std::vector<int64_t> seq_lens;
  HostTensor hidden_states;  // [sum of seq_lens, hidden_size] f32
};

// `config` as a model of its layer `layer_idx` alone, with a vocabulary of one token.
ModelConfig one_layer_config(const ModelConfig& config, int64_t layer_idx);

class LayerRunner {
 public:
  static constexpr int64_t kMaxSeqs = 64;  // in a batch
  // For batches of at most max_tokens tokens. Errors: memory, a tensor that is missing.
  static Result<std::unique_ptr<LayerRunner>> create(Device& device, const ModelConfig& one_layer,
                                                     const LayerSource& source, int64_t max_tokens,
                                                     int64_t max_seq_len);

  // x [num_tokens, in_features] f32 on the host, valid for the call.
  using Tap = std::function<void(LinearInput input, const Tensor& x)>;
  // The hidden states behind the layer, [num_tokens, hidden_size] f32.
  HostTensor run(const HiddenBatch& batch, const Tap& tap = {});

 private:
  LayerRunner(Device& device, const ModelConfig& config)
      : device_(device), config_(config), stream_(device.create_stream()), communicator_(make_single_communicator()) {}
  Status allocate(int64_t max_tokens, int64_t max_seq_len);
  Tensor upload(Buffer& buffer, const std::vector<int32_t>& values);
  void show(const Tensor& x);

  static OpTable tapped_ops(const OpTable& ops);

  Device& device_;
  const ModelConfig config_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> communicator_;
  OpTable ops_;  // of the device, bound
  std::unique_ptr<Model> model_;
  int64_t max_blocks_per_seq_ = 0;
  KvStorage kv_;
  Buffer token_ids_, positions_, slots_, seq_rows_, cu_seqlens_, seq_lens_, block_table_;
  // Of the run in progress.
  const HiddenBatch* batch_ = nullptr;
  const Tap* tap_ = nullptr;
  int num_products_ = 0;
};

}  // namespace spate

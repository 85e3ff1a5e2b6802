// LayerRunner: runs one layer of a model in f32 on given hidden states and shows what its matrices are given. The layer
// is a Model of that layer alone, with a vocabulary of one token. Some ops of its table are replaced: `embedding` gives
// the hidden states, and a product shows its input first.
//
// Belongs to one thread; the device outlives it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/kv_storage.h"
#include "backend/ops.h"
#include "model/model.h"
#include "parallel/communicators.h"
#include "quantizer/layer_source.h"

namespace spate {

// Whole sequences that run in one step, and what goes into a layer for them.
struct HiddenBatch {
  std::vector<int64_t> seq_lens;
  HostTensor hidden_states;  // [sum of seq_lens, hidden_size] f32
};

class LayerRunner {
 public:
  static constexpr int64_t kMaxSeqs = 64;  // in a batch
  // `config` is the whole model's. For batches of at most max_tokens tokens. Errors: memory, a tensor that is missing.
  static Result<std::unique_ptr<LayerRunner>> create(Device& device, const ModelConfig& config,
                                                     const LayerSource& source, int64_t max_tokens,
                                                     int64_t max_seq_len);

  // Of the layer's products, as ModelOutline lists them: x [num_tokens, in_features] f32 on the host, valid for the
  // call.
  using Tap = std::function<void(size_t product_idx, const Tensor& x)>;
  // Of the layer's experts: x [num_tokens, hidden_size] f32, and which of them each token is sent to, [num_tokens,
  // num_experts_per_tok] i32.
  using ExpertTap = std::function<void(HostTensor x, HostTensor expert_ids)>;
  // The hidden states behind the layer, [num_tokens, hidden_size] f32.
  HostTensor run(const HiddenBatch& batch, const Tap& tap = {}, const ExpertTap& expert_tap = {});

 private:
  LayerRunner(Device& device, const ModelConfig& config)
      : device_(device),
        config_(config),
        stream_(device.create_stream()),
        communicators_(make_single_communicators()) {}
  Status allocate(int64_t max_tokens, int64_t max_seq_len);
  Tensor upload(Buffer& buffer, const std::vector<int32_t>& values);
  HostTensor download(const Tensor& rows);
  void show(const PackedWeight* weight, const Tensor& x);
  void show_experts(const ExpertMlpParams& p);

  static OpTable tapped_ops(const OpTable& ops);

  Device& device_;
  const ModelConfig config_;
  std::unique_ptr<Stream> stream_;
  Communicators communicators_;
  OpTable ops_;  // of the device, bound
  std::unique_ptr<Model> model_;
  std::vector<Product> products_;
  int64_t max_blocks_per_seq_ = 0;
  KvStorage kv_;
  Buffer token_ids_, positions_, slots_, seq_rows_, cu_seqlens_, seq_lens_, block_table_;
  // Of the run in progress.
  const HiddenBatch* batch_ = nullptr;
  const Tap* tap_ = nullptr;
  const ExpertTap* expert_tap_ = nullptr;
};

}  // namespace spate

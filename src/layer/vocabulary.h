// The two ends of a model: token ids to hidden states, hidden states to logits. Both share the vocabulary's rows out
// over the tensor-parallel group, ceil(vocab_size / size) each; the last shard is padded with zero rows.
#pragma once

#include <memory>
#include <string>

#include "layer/parameter_factory.h"
#include "layer/step_context.h"

namespace spate {

class VocabEmbedding {
 public:
  // Table "<name>.weight" [vocab_size, hidden_size].
  static Result<VocabEmbedding> create(ParameterFactory& factory, const std::string& name, int64_t vocab_size,
                                       int64_t hidden_size);
  // token_ids [n] -> out [n, hidden_size], summed over the ranks (one of them has the row).
  void forward(const StepContext& ctx, const Tensor& token_ids, const Tensor& out) const;
  const std::shared_ptr<PackedWeight>& table() const { return table_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::shared_ptr<PackedWeight> table_;
  int64_t first_row_ = 0;
  bool sum_over_ranks_ = false;
};

class LmHead {
 public:
  // Matrix "<name>.weight" [vocab_size, hidden_size].
  static Result<LmHead> create(ParameterFactory& factory, const std::string& name, int64_t vocab_size,
                               int64_t hidden_size);
  // Shares the embedding's table. A checkpoint may still hold "<name>.weight": it is ignored.
  static LmHead tied(ParameterFactory& factory, const std::string& name, const VocabEmbedding& embedding,
                     int64_t vocab_size);

  // x [n, hidden_size] -> logits [n, vocab_size] f32 on rank 0, undefined elsewhere.
  // Scratch, f32: shard [n, shard_width()]; gathered [n, size * shard_width()], used on rank 0 of several.
  Tensor forward(const StepContext& ctx, const Tensor& x, const Tensor& shard, const Tensor& gathered) const;
  int64_t shard_width() const { return weight_->desc().out_features; }
  const std::string& name() const { return name_; }  // also of a tied one, which has no weight of its own

 private:
  std::string name_;
  std::shared_ptr<PackedWeight> weight_;
  int64_t vocab_size_ = 0;
};

}  // namespace spate

#include "layer/vocabulary.h"

#include <algorithm>

#include "parallel/communicators.h"

namespace spate {
namespace {

int64_t shard_rows(int64_t vocab_size, TensorParallel tp) { return (vocab_size + tp.size - 1) / tp.size; }

Result<std::shared_ptr<PackedWeight>> vocabulary_matrix(ParameterFactory& factory, const std::string& name,
                                                        int64_t vocab_size, int64_t hidden_size) {
  const TensorParallel tp = factory.tp();
  const int64_t num_rows = shard_rows(vocab_size, tp);
  const int64_t begin = std::min(vocab_size, num_rows * tp.rank);
  const int64_t count = std::min(vocab_size - begin, num_rows);
  const std::string names[] = {name + ".weight"};
  ASSIGN_OR_RETURN(std::shared_ptr<PackedWeight> weight,
                   factory.matrix(ParameterFactory::Role::kVocabulary, names, num_rows, hidden_size));
  factory.declare(WeightLoader::MatrixSlice{.name = name + ".weight",
                                            .full_rows = vocab_size,
                                            .full_columns = hidden_size,
                                            .rows = {begin, count},
                                            .columns = {0, hidden_size},
                                            .weight = weight.get()});
  factory.declare_zero_rows(weight.get(), {count, num_rows - count});
  factory.count_parameters(vocab_size * hidden_size);
  return weight;
}

}  // namespace

Result<VocabEmbedding> VocabEmbedding::create(ParameterFactory& factory, const std::string& name, int64_t vocab_size,
                                              int64_t hidden_size) {
  VocabEmbedding embedding;
  embedding.name_ = name;
  ASSIGN_OR_RETURN(embedding.table_, vocabulary_matrix(factory, name, vocab_size, hidden_size));
  embedding.first_row_ = shard_rows(vocab_size, factory.tp()) * factory.tp().rank;
  embedding.sum_over_ranks_ = factory.tp().size > 1;
  return embedding;
}

void VocabEmbedding::forward(const StepContext& ctx, const Tensor& token_ids, const Tensor& out) const {
  ctx.ops.embedding(ctx.stream, {.token_ids = token_ids, .table = table_.get(), .first_row = first_row_, .out = out});
  if (sum_over_ranks_) static_cast<void>(ctx.communicators.tp->all_reduce_sum(ctx.stream, out));
}

Result<LmHead> LmHead::create(ParameterFactory& factory, const std::string& name, int64_t vocab_size,
                              int64_t hidden_size) {
  LmHead head;
  head.name_ = name;
  ASSIGN_OR_RETURN(head.weight_, vocabulary_matrix(factory, name, vocab_size, hidden_size));
  head.vocab_size_ = vocab_size;
  return head;
}

LmHead LmHead::tied(ParameterFactory& factory, const std::string& name, const VocabEmbedding& embedding,
                    int64_t vocab_size) {
  LmHead head;
  head.name_ = name;
  head.weight_ = embedding.table();
  head.vocab_size_ = vocab_size;
  factory.ignore(name + ".weight");
  return head;
}

Tensor LmHead::forward(const StepContext& ctx, const Tensor& x, const Tensor& shard, const Tensor& gathered) const {
  ctx.ops.linear(ctx.stream, {.x = x, .weight = weight_.get(), .bias = {}, .out = shard});
  Communicator& group = *ctx.communicators.tp;
  if (group.size() == 1) return shard;
  static_cast<void>(group.gather_columns(ctx.stream, shard, group.rank() == 0 ? gathered : Tensor()));
  return group.rank() == 0 ? gathered.columns(0, vocab_size_) : Tensor();
}

}  // namespace spate

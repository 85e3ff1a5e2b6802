// FakeExecutor: a StepExecutor without a device and without a model, for tests and simulations of everything above it.
//
// It keeps the running state on the host exactly as a device does (RowState) and a KV cache that stores, for each slot,
// which token at which position was written there. "Attention" checks that every slot of a sequence's context holds
// exactly its tokens: a wrong block table, a shared block that was overwritten, a missing copy, a block freed too early
// all end in a CHECK. The next token is a hash of the whole context read from the cache and of the seed, so outputs are
// a pure function of the request and can be compared with an oracle that knows no batch (fake_generate). Drafts come
// from the plan, or from here (DraftSource::kExecutor): behind each sampled token stands the oracle's continuation,
// with each token right in a share of draft_hit_rate, so that all numbers of accepted drafts occur.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "core/engine_config.h"
#include "core/request.h"
#include "core/layered_executor.h"

namespace spate {

constexpr int kFakeVocabSize = 64;

// The token after `context`; never one of masked_ids.
int32_t fake_next_token(std::span<const int32_t> context, uint64_t seed, std::span<const int32_t> masked_ids);
float fake_logprob(std::span<const int32_t> context, int32_t token_id);
// Of the last token of `context`: two whole numbers below 1000, so that sums of them are exact.
std::vector<float> fake_hidden_state(std::span<const int32_t> context);
// What a request with a pooling must get.
std::vector<float> fake_pooled(std::span<const int32_t> prompt, Pooling pooling);

// What the engine must answer to sequence `index` of a request (with a seed set), one token after the other.
struct FakeAnswer {
  std::vector<int32_t> token_ids;
  FinishReason finish_reason = FinishReason::kNone;
  int32_t stop_token_id = -1;
};
FakeAnswer fake_generate(const Request& request, int index, const EngineConfig& config);

class FakeExecutor : public LayeredExecutor {
 public:
  // num_layers: with reads_next_tokens.
  explicit FakeExecutor(const EngineConfig& config, int num_layers = 1);

  void submit(std::span<const std::byte> plan) override;
  void supply_masks(std::span<const uint32_t> masks) override;
  Status collect(StepResult& result) override;
  int num_in_flight() const override { return static_cast<int>(plans_.size()); }
  int num_layers() const override { return static_cast<int>(slots_of_layer_.size()); }
  void select_layer(int layer_idx) override { layer_idx_ = layer_idx; }

  // Called with each plan's header when the step runs; gives the step's seconds (a cost model). Default: 0.
  std::function<double(const StepPlanHeader&)> step_seconds;
  double draft_hit_rate = 0.7;
  // As the executor of a draft model: the share of its tokens that are not the oracle's.
  double miss_rate = 0;
  // As that of a layer which joins each token with the one behind it (DraftKvMap): places hold the tokens behind
  // theirs, the newest token has none, and the last place of a block may hold any token. Of several layers the next
  // one's places hold the tokens one further on.
  bool reads_next_tokens = false;
  // True: the logits behind the row's first num_tokens tokens are not finite.
  std::function<bool(const RowSampling&, int num_tokens)> is_nonfinite;
  // collect() of this step and all later ones fails; 0 = never.
  uint64_t fail_at_step = 0;

  // Whether a block holds these tokens at positions first_position, first_position + 1, ...
  bool holds(int32_t block_id, std::span<const int32_t> token_ids, int first_position) const;

  uint64_t num_tokens_computed() const { return num_tokens_computed_; }
  uint64_t num_blocks_copied() const { return num_blocks_copied_; }
  int max_query_len_seen() const { return max_query_len_seen_; }

 private:
  struct Slot {
    int32_t token_id = -1;
    int32_t position = -1;
    uint64_t step_id = 0;  // that wrote it
    int32_t row = -1;
    bool is_of_draft =
        false;  // with reads_next_tokens: made from a hidden state of the layer's own, for this chain alone
  };
  struct Row {
    std::vector<int32_t> token_ids;  // [max_model_len]
    std::vector<int32_t> block_table;
    std::vector<int32_t> stop_ids;
    int num_tokens = 0;
    int num_computed_tokens = 0;
    int num_prompt_logprobs = -1;
    bool pools = false;  // a hidden state was asked for: its sequence samples nothing
    RowSampling sampling;
  };

  void update_rows(const void* plan, const StepPlanHeader& header);
  void copy_blocks(const void* plan, const StepPlanHeader& header);
  void write_tokens(const SeqStep& seq, uint64_t step_id);
  void read_context(const Row& row, const SeqStep& seq);
  void pool(const SeqStep& seq, const Row& row, StepResult& result) const;
  void sample(const SeqStep& seq, const uint32_t* mask, Row& row, StepResult& result);
  int32_t choose_token(const Row& row, std::span<const int32_t> context, const uint32_t* mask = nullptr) const;
  void propose_drafts(Row& row);
  Slot& slot_at(const Row& row, int position);
  int32_t token_of_place(const Row& row, int position) const {
    return row.token_ids[position + tokens_ahead()];
  }
  // Of a row's tokens, how many have a place.
  int num_places(const Row& row) const { return row.num_tokens - tokens_ahead(); }
  int tokens_ahead() const { return reads_next_tokens ? 1 + layer_idx_ : 0; }

  const EngineConfig config_;
  std::deque<std::vector<uint64_t>> plans_;
  std::vector<Row> rows_;
  std::vector<std::vector<Slot>> slots_of_layer_;  // [num_kv_blocks * kv_block_size] each
  int layer_idx_ = 0;
  std::vector<int32_t> context_;  // of the sequence at hand, as read from the cache
  Rng rng_{1};                    // of the proposed drafts
  uint64_t num_tokens_computed_ = 0;
  uint64_t num_blocks_copied_ = 0;
  int max_query_len_seen_ = 0;
};

}  // namespace spate

#include "speculative/model_proposer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "batch/plan_builder.h"
#include "batch/request_row.h"
#include "core/layered_executor.h"
#include "speculative/draft_kv_map.h"

namespace spate {
namespace {

struct ModelState final : ProposerState {
  ModelState(const Request& request, uint64_t seed, int kv_block_size)
      : sampling(row_sampling(request, seed)), stop_ids(all_stop_ids(request)), chain(kv_block_size) {
    sampling.num_logprobs = -1;
  }
  RowSampling sampling;
  std::vector<int32_t> stop_ids;
  TokenChain chain;
};

// A row in one call of propose().
struct Turn {
  DraftRow* row;
  ModelState* state;
  int num_places;  // of the cache that the known tokens fill
  int num_computed =
      -1;             // tokens that the device's row has in the cache; -1: it holds another sequence, or an older state
  int query_len = 0;  // in the step at hand; 0: it sits out
  int round_begin = 0, round_len = 0;  // of the places that all layers run one after the other
  bool round_completes = false;        // up to the newest place
  bool samples = false;
  bool ended = false;                        // nothing may or can follow
  std::unique_ptr<ConstraintCursor> cursor;  // behind the newest draft, with a constraint

  int num_drafts() const { return static_cast<int>(row->drafts->size()); }
  bool wants_more() const { return !ended && num_drafts() < row->max_drafts; }
};

class ModelProposer final : public Proposer {
 public:
  ModelProposer(const ModelProposerOptions& options, StepExecutor& executor)
      : options_(options),
        executor_(executor),
        layers_(dynamic_cast<LayeredExecutor*>(&executor)),
        num_layers_(layers_ != nullptr ? layers_->num_layers() : 1),
        reads_next_tokens_(reads_next_tokens(options.config.method)),
        num_scratch_blocks_(scratch_blocks_per_row(options.config, options.limits.kv_block_size)),
        map_(options.num_kv_blocks, options.limits.kv_block_size, reads_next_tokens_, num_layers_),
        claimed_by_step_(static_cast<size_t>(options.num_kv_blocks)) {}

  bool is_cheap() const override { return false; }
  std::unique_ptr<ProposerState> start(const Request& request, uint64_t seed) override {
    return std::make_unique<ModelState>(request, seed, options_.limits.kv_block_size);
  }

  Status propose(std::span<DraftRow> rows) override {
    step_times_.clear();
    latest_seconds_ = options_.clock();
    turns_.clear();
    for (DraftRow& row : rows) {
      if (row.max_drafts == 0) continue;
      auto* state = static_cast<ModelState*>(row.state);
      const std::span<const int32_t> places = row.token_ids.subspan(reads_next_tokens_ ? 1 : 0);
      state->chain.set_known(places);
      turns_.push_back({.row = &row, .state = state, .num_places = static_cast<int>(places.size())});
      // The token that the last layer reads at the newest place needs room in the row.
      turns_.back().ended = std::ssize(row.token_ids) + num_layers_ - 1 > options_.limits.max_model_len;
      if (row.cursor != nullptr) turns_.back().cursor = row.cursor->clone_to_draft();
    }
    const auto is_behind = [](const Turn& turn) { return turn.num_drafts() == 0 && !turn.ended; };
    while (std::ranges::any_of(turns_, is_behind)) {
      RETURN_IF_ERROR(run_step(0, SeqPhase::kPrefill, [&] { return plan_catching_up(); }));
      for (int i = 1; i < num_layers_; ++i) {
        RETURN_IF_ERROR(run_step(i, SeqPhase::kPrefill, [&] { return plan_next_layer(i); }));
      }
    }
    while (std::ranges::any_of(turns_, &Turn::wants_more)) {
      RETURN_IF_ERROR(run_step(num_layers_ - 1, SeqPhase::kDecode, [&] { return plan_drafts(); }));
    }
    return ok_status();
  }

  std::span<const StepTime> step_times() const override { return step_times_; }

 private:
  template <typename Plan>
  Status run_step(int layer_idx, SeqPhase phase, Plan&& plan) {
    for (Turn& turn : turns_) turn.query_len = 0;
    layer_idx_ = layer_idx;
    phase_ = phase;
    if (layers_ != nullptr) layers_->select_layer(layer_idx);
    builder_.begin(++step_id_);
    const int num_tokens = plan();
    CHECK(num_tokens > 0, "what drafts has nothing to run");
    executor_.submit(builder_.finish());
    RETURN_IF_ERROR(executor_.collect(result_));
    take_results();
    const double now = options_.clock();
    step_times_.push_back({num_tokens, now - std::exchange(latest_seconds_, now)});
    return ok_status();
  }

  // Known tokens that the cache lacks, as many as a step holds; a row that reaches its newest token samples. A block
  // that two rows share is written by one of them; the other finds it written in the next step. The last num_layers_
  // places are run together: behind them layers read drafts.
  int plan_catching_up() {
    int budget = options_.limits.max_num_batched_tokens;
    for (Turn& turn : turns_) {
      turn.round_len = 0;
      if (turn.num_drafts() > 0 || turn.ended || budget == 0) continue;
      const int max_held = std::max(0, turn.num_places - num_layers_);
      const int num_held = std::min(map_.num_held(turn.state->chain, turn.row->block_ids), max_held);
      int end = unclaimed_end(turn, num_held, std::min(turn.num_places, num_held + budget));
      if (end < turn.num_places) end = std::min(end, max_held);
      if (end <= num_held) continue;
      if (turn.num_computed != num_held) enter_row(turn, num_held, turn.row->token_ids);
      turn.round_begin = num_held;
      turn.round_len = turn.query_len = end - num_held;
      turn.round_completes = turn.samples = end == turn.num_places;
      budget -= turn.query_len;
      add_seq(turn);
    }
    return options_.limits.max_num_batched_tokens - budget;
  }

  // The places of the step before, which the next layer joins with the tokens behind: at the newest place, with the
  // draft. A row that has all its drafts, or none to go on from, runs along, and its last places do not count.
  int plan_next_layer(int layer_idx) {
    int num_tokens = 0;
    for (Turn& turn : turns_) {
      if (turn.round_len == 0) continue;
      turn.query_len = turn.round_len;
      turn.samples = turn.round_completes && turn.wants_more();
      num_tokens += turn.query_len;
      known_and_drafts_.assign(turn.row->token_ids.begin(), turn.row->token_ids.end());
      if (turn.round_completes) {
        known_and_drafts_.insert(known_and_drafts_.end(), turn.row->drafts->begin(), turn.row->drafts->end());
        known_and_drafts_.resize(turn.row->token_ids.size() + static_cast<size_t>(layer_idx));
      }
      enter_row(turn, turn.round_begin, known_and_drafts_);
      add_seq(turn);
    }
    return num_tokens;
  }

  int plan_drafts() {
    int num_tokens = 0;
    for (Turn& turn : turns_) {
      if (!turn.wants_more()) continue;
      turn.query_len = 1;
      turn.samples = true;
      ++num_tokens;
      add_seq(turn);
    }
    return num_tokens;
  }

  int unclaimed_end(const Turn& turn, int begin, int end) {
    const int block_size = options_.limits.kv_block_size;
    for (int idx = begin / block_size; idx * block_size < end && idx < std::ssize(turn.row->block_ids); ++idx) {
      uint64_t& step = claimed_by_step_[static_cast<size_t>(turn.row->block_ids[static_cast<size_t>(idx)])];
      if (step == step_id_) return std::max(begin, idx * block_size);
      step = step_id_;
    }
    return end;
  }

  // The row as the host knows it, and its blocks; behind them its scratch blocks.
  void enter_row(Turn& turn, int num_computed, std::span<const int32_t> token_ids) {
    const DraftRow& row = *turn.row;
    turn.num_computed = num_computed;
    builder_.add_row({.row = row.row,
                      .num_computed_tokens = num_computed,
                      .sampling = turn.state->sampling,
                      .token_ids = token_ids,
                      .logit_bias = row.request->sampling.logit_bias,
                      .stop_ids = turn.state->stop_ids});
    const int block_size = options_.limits.kv_block_size;
    // The last draft is not computed itself.
    const int num_blocks = (turn.num_places + row.max_drafts - 1 + block_size - 1) / block_size;
    const int num_own = std::min(num_blocks, static_cast<int>(row.block_ids.size()));
    CHECK(num_blocks - num_own <= num_scratch_blocks_, "row {}: {} blocks for {} places and {} drafts", row.row,
          num_own, turn.num_places, row.max_drafts);
    const std::span<int32_t> ids = builder_.add_blocks(row.row, 0, num_blocks);
    std::copy_n(row.block_ids.begin(), num_own, ids.begin());
    for (int i = num_own; i < num_blocks; ++i) {
      ids[static_cast<size_t>(i)] = options_.num_kv_blocks + row.row * num_scratch_blocks_ + i - num_own;
    }
  }

  void add_seq(const Turn& turn) {
    SeqStep seq{.row = turn.row->row,
                .query_len = turn.query_len,
                .phase = phase_,
                .flags = turn.samples ? uint32_t{kSample} : 0u,
                .num_computed_tokens = turn.num_computed};
    if (turn.samples && turn.cursor != nullptr) {
      seq.first_mask = builder_.add_mask(turn.cursor->mask(), end_ids_at(*turn.row->request, *turn.cursor));
    }
    builder_.add_seq(seq);
  }

  void take_results() {
    size_t num_sampled = 0;
    for (Turn& turn : turns_) {
      if (turn.query_len == 0) continue;
      const int end = turn.num_computed + turn.query_len;
      if (reads_next_tokens_ && phase_ == SeqPhase::kDecode) {
        // Of a draft's own hidden state: computed again with the model's, if the draft was right.
        map_.forget(turn.row->block_ids, turn.num_computed);
      } else if (layer_idx_ + 1 == num_layers_) {
        // Behind these places a layer has read a draft.
        const int end_of_known = std::min(end, turn.num_places - (num_layers_ - 1));
        map_.write(turn.state->chain, turn.row->block_ids, turn.num_computed, end_of_known);
        for (int p = std::max(end_of_known, turn.num_computed); p < end; ++p) map_.forget(turn.row->block_ids, p);
      }
      turn.num_computed = end;
      if (turn.samples) take_draft(turn, result_.next_token_ids.at(num_sampled++));
    }
    CHECK(num_sampled == result_.next_token_ids.size(), "{} drafts came, {} were expected",
          result_.next_token_ids.size(), num_sampled);
  }

  void take_draft(Turn& turn, int32_t token_id) {
    turn.ended = token_id == kNoToken;  // the draft's logits are not finite: the target's may well be
    if (turn.ended) return;
    turn.row->drafts->push_back(token_id);
    turn.state->chain.append_draft(token_id);
    turn.ended = std::ranges::binary_search(turn.state->stop_ids, token_id);
    if (turn.ended || turn.cursor == nullptr) return;
    turn.ended = !turn.cursor->append(token_id).ok() || turn.cursor->must_end() || !turn.cursor->prepare_mask().ok();
  }

  const ModelProposerOptions options_;
  StepExecutor& executor_;
  LayeredExecutor* const layers_;  // the same, where it has layers
  const int num_layers_;
  const bool reads_next_tokens_;  // a place needs the token behind its own: the newest token fills none
  const int num_scratch_blocks_;  // of a row
  DraftKvMap map_;
  StepPlanBuilder builder_;
  StepResult result_;
  uint64_t step_id_ = 0;
  int layer_idx_ = 0;  // of the step at hand
  SeqPhase phase_ = SeqPhase::kPrefill;
  std::vector<uint64_t> claimed_by_step_;  // by block: the latest step that writes to it
  std::vector<Turn> turns_;
  std::vector<int32_t> known_and_drafts_;
  std::vector<StepTime> step_times_;
  double latest_seconds_ = 0;
};

}  // namespace

std::unique_ptr<Proposer> make_model_proposer(const ModelProposerOptions& options, StepExecutor& executor) {
  return std::make_unique<ModelProposer>(options, executor);
}

}  // namespace spate

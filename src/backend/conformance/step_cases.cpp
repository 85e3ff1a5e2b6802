// apply_updates, begin_step and finish_step over random plans: sequences enter rows, prefill in chunks, decode, leave; every
// fourth fills its row and samples once too often, decode rows bring drafts of which some are accepted, and every tenth
// step runs no sequence. Every second step is launched with dummies. After every step the whole state and all inputs
// must equal the reference's.
#include <algorithm>
#include <cstring>

#include "backend/conformance/state_rig.h"

namespace spate::conformance {
namespace {

constexpr int64_t kKvBlockSize = 16, kMaxTokens = 48;
constexpr StateSizes kSizes{.max_num_seqs = 5, .max_model_len = 70, .max_blocks_per_seq = 5};

// What the host knows of a row.
struct HostRow {
  bool used = false;
  int32_t num_tokens = 0, num_computed_tokens = 0, num_blocks = 0;
  std::vector<int32_t> token_ids;  // what stands in the row, as far as it is known, also behind num_tokens
};

// A plan and the tokens that its rows of logits "choose".
struct Step {
  PlanParts plan;
  std::vector<int32_t> next_token_ids, num_accepted;
};

class PlanMaker {
 public:
  explicit PlanMaker(uint64_t stream) : rng_(test_seed(), stream), rows_(static_cast<size_t>(kSizes.max_num_seqs)) {}

  Step next() {
    Step step;
    PlanParts& plan = step.plan;
    int32_t budget = kMaxTokens;
    for (size_t row = 0; row < rows_.size(); ++row) {
      HostRow& r = rows_[row];
      const bool full = r.num_computed_tokens == kSizes.max_model_len;
      if (!r.used || full || rng_.below(6) == 0) {
        r = {};
        if (rng_.below(3) == 0) continue;
        enter(plan, row);
      }
      if (rng_.below(5) == 0) continue;  // sits this step out
      run(step, row, budget);
    }
    return step;
  }
  int32_t num_tokens(size_t row) const { return rows_[row].num_tokens; }

 private:
  int32_t random_int(uint64_t bound) { return static_cast<int32_t>(rng_.below(bound)); }
  std::vector<int32_t> random_ints(int32_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& value : values) value = random_int(100000);
    return values;
  }

  void enter(PlanParts& plan, size_t row) {
    HostRow& r = rows_[row];
    r.used = true;
    const bool fills_row = num_entered_++ % 4 == 0;
    r.num_tokens = fills_row ? static_cast<int32_t>(kSizes.max_model_len)
                             : 1 + random_int(static_cast<uint64_t>(kSizes.max_model_len) - 10);
    r.num_computed_tokens = random_int(static_cast<uint64_t>(r.num_tokens));  // a prefix hit
    RowUpdate update;
    update.row = static_cast<int32_t>(row);
    update.num_tokens = r.num_tokens;
    update.num_computed_tokens = r.num_computed_tokens;
    update.sampling.seed = rng_.next_u64();
    update.sampling.temperature = rng_.uniform();
    update.sampling.top_p = rng_.uniform();
    update.sampling.prompt_len = r.num_tokens;
    update.sampling.relaxed_top_k = random_int(20);
    update.sampling.relaxed_delta = rng_.uniform();
    update.sampling.relaxed_end_id = random_int(100000);
    update.sampling.num_bias = random_int(3) == 0 ? kMaxLogitBias : random_int(5);
    update.sampling.num_stop_ids = random_int(3) == 0 ? kMaxStopIds : random_int(5);
    r.token_ids = random_ints(r.num_tokens);
    update.tokens_begin = plan.add_data(r.token_ids);
    update.bias_ids_begin = plan.add_data(random_ints(update.sampling.num_bias));
    update.bias_values_begin = plan.add_data(random_ints(update.sampling.num_bias));  // small ints: denormal floats, and as good
    update.stop_ids_begin = plan.add_data(random_ints(update.sampling.num_stop_ids));
    plan.row_updates.push_back(update);
    if (r.num_computed_tokens > 0) give_blocks(plan, row, r.num_computed_tokens);
  }

  void give_blocks(PlanParts& plan, size_t row, int32_t seq_len) {
    HostRow& r = rows_[row];
    const int32_t needed = (seq_len + kKvBlockSize - 1) / kKvBlockSize;
    if (needed <= r.num_blocks) return;
    const std::vector<int32_t> blocks = random_ints(needed - r.num_blocks);
    plan.block_updates.push_back({.row = static_cast<int32_t>(row),
                                  .first_block_idx = r.num_blocks,
                                  .num_blocks = needed - r.num_blocks,
                                  .blocks_begin = plan.add_data(blocks)});
    r.num_blocks = needed;
  }

  void run(Step& step, size_t row, int32_t& budget) {
    HostRow& r = rows_[row];
    const int32_t missing = r.num_tokens - r.num_computed_tokens;
    SeqStep seq{.row = static_cast<int32_t>(row),
                .query_len = std::min({missing, budget, 1 + random_int(20)}),
                .num_computed_tokens = r.num_computed_tokens};
    if (seq.query_len <= 0) return;
    if (seq.query_len == missing) seq.flags = kSample;
    if (missing == 1) give_drafts(step.plan, r, budget, seq);
    if (seq.flags != 0) seq.first_mask = random_int(3) - 1;
    give_blocks(step.plan, row, r.num_computed_tokens + seq.query_len);
    step.plan.seqs.push_back(seq);
    budget -= seq.query_len;
    step.num_accepted.push_back(choose(step, r, seq));
  }

  // A decode row, with up to kMaxDrafts drafts: new ones, or those that stand in the row already.
  void give_drafts(PlanParts& plan, const HostRow& r, int32_t budget, SeqStep& seq) {
    seq.phase = SeqPhase::kDecode;
    seq.num_computed_tokens += random_int(3);  // an upper bound
    const auto max_model_len = static_cast<int32_t>(kSizes.max_model_len);
    const int32_t room = std::min(budget - 1, max_model_len - 1 - r.num_tokens);
    const auto num_left = static_cast<int32_t>(r.token_ids.size()) - r.num_tokens;
    seq.num_drafts = std::max(0, std::min(room, random_int(4) == 0 ? kMaxDrafts : random_int(4)));
    if (num_left > 0 && room > 0 && random_int(2) == 0) {
      seq.flags |= kDraftsInRow;
      seq.num_drafts = std::min(seq.num_drafts, num_left);
    } else {
      seq.drafts_begin = plan.add_data(random_ints(seq.num_drafts));
      seq.num_relaxed = random_int(static_cast<uint64_t>(seq.num_drafts) + 1);
    }
    seq.query_len = 1 + seq.num_drafts;
  }

  // What the step does to the row. Three of four drafts are what is chosen in their place.
  int32_t choose(Step& step, HostRow& r, const SeqStep& seq) {
    if (seq.num_drafts > 0 && (seq.flags & kDraftsInRow) == 0) {
      r.token_ids.resize(static_cast<size_t>(r.num_tokens));
      const auto drafts = step.plan.data.begin() + seq.drafts_begin;
      r.token_ids.insert(r.token_ids.end(), drafts, drafts + seq.num_drafts);
    }
    const size_t first = step.next_token_ids.size();
    for (int32_t i = 0; i < num_logits_of(seq); ++i) {
      const auto position = static_cast<size_t>(r.num_tokens + i);
      const bool equal = i < seq.num_drafts && random_int(4) != 0;
      step.next_token_ids.push_back(equal ? r.token_ids[position] : random_int(8) - 1);
    }
    int32_t num_accepted = 0;
    while (num_accepted < seq.num_drafts) {
      const int32_t draft = r.token_ids[static_cast<size_t>(r.num_tokens + num_accepted)];
      if (draft < 0 || draft != step.next_token_ids[first + static_cast<size_t>(num_accepted)]) break;
      ++num_accepted;
    }
    r.num_computed_tokens += seq.query_len - seq.num_drafts + num_accepted;
    if (num_logits_of(seq) == 0) return 0;
    const auto end = static_cast<size_t>(r.num_tokens + num_accepted);
    if (end < static_cast<size_t>(kSizes.max_model_len)) {  // else the token is dropped
      if (r.token_ids.size() <= end) r.token_ids.resize(end + 1);
      r.token_ids[end] = step.next_token_ids[first + static_cast<size_t>(num_accepted)];
      r.num_tokens = static_cast<int32_t>(end) + 1;
    }
    return num_accepted;
  }

  Rng rng_;
  std::vector<HostRow> rows_;
  int num_entered_ = 0;
};

void read_inputs(Side& side, const StepInputs& in, Outputs& outputs) {
  const auto add = [&](const char* name, const Tensor& tensor) { outputs.push_back({name, side.get(tensor), {}}); };
  add("inputs.token_ids", in.token_ids);
  add("inputs.positions", in.positions);
  add("inputs.slot_mapping", in.slot_mapping);
  add("inputs.seq_rows", in.seq_rows);
  add("inputs.cu_seqlens_q", in.cu_seqlens_q);
  add("inputs.seq_lens", in.seq_lens);
  add("inputs.sample_token_idxs", in.sample_token_idxs);
  add("inputs.sample_state_rows", in.sample_state_rows);
  add("inputs.sample_offsets", in.sample_offsets);
  add("inputs.sample_masks", in.sample_masks);
  add("inputs.sample_drafts", in.sample_drafts);
}

}  // namespace

void add_step_cases(Report& report, Sides sides) {
  Family family(report, "apply_updates begin_step finish_step");
  for (uint64_t run = 0; run < 8; ++run) {
    family.compare(sides.actual, sides.expected, fmt::format("run {}", run), [&](Side& side) -> Outputs {
      PlanMaker plans(run);
      const DeviceState state = put_state(side, kSizes);
      Outputs outputs;
      for (int step = 0; step < 25; ++step) {
        const Step planned = step % 10 == 9 ? Step() : plans.next();
        const std::vector<uint64_t> image = planned.plan.image();
        const auto& header = *reinterpret_cast<const StepPlanHeader*>(image.data());
        HostTensor plan_bytes(DType::kI64, {static_cast<int64_t>(image.size())});
        std::memcpy(plan_bytes.view().raw(), image.data(), image.size() * 8);
        const void* plan = side.put(plan_bytes).raw();
        const int dummies = step % 2 == 0 ? 0 : step;  // of tokens far more than a CTA has threads, once they are many
        const LaunchCounts counts{.num_tokens = header.num_tokens + 20 * dummies,
                                  .num_seqs = header.num_seqs + dummies,
                                  .num_logits = header.num_logits + dummies / 2};
        const StepInputs inputs = put_inputs(side, counts);
        HostTensor next(DType::kI32, {counts.num_logits});
        std::copy(planned.next_token_ids.begin(), planned.next_token_ids.end(), next.span<int32_t>().begin());
        const Tensor num_accepted = side.put(poisoned_tensor(DType::kI32, {counts.num_seqs}));
        side.ops().apply_updates(side.stream(), {.plan_host = &header, .plan = plan, .state = state.state});
        side.ops().begin_step(side.stream(), {.plan = plan, .state = state.state, .inputs = inputs, .kv_block_size = kKvBlockSize});
        side.ops().finish_step(side.stream(), {.plan = plan, .state = state.state, .num_seqs = counts.num_seqs, .next_token_ids = side.put(next), .num_accepted = num_accepted});
        const HostTensor accepted = side.get(num_accepted), num_tokens = side.get(state.state.num_tokens);
        // The reference, too, must do what the plan's maker expects.
        for (size_t i = 0; i < planned.plan.seqs.size() && &side == &sides.expected; ++i) {
          const auto row = static_cast<size_t>(planned.plan.seqs[i].row);
          CHECK(accepted.span<int32_t>()[i] == planned.num_accepted[i], "num_accepted of row {}", row);
          CHECK(num_tokens.span<int32_t>()[row] == plans.num_tokens(row), "num_tokens of row {}", row);
        }
        outputs.push_back({"num_accepted", side.get(num_accepted), {}});
        read_inputs(side, inputs, outputs);
        for (Output& output : state.read(side)) outputs.push_back(std::move(output));
      }
      return outputs;
    });
  }
}

}  // namespace spate::conformance

// StepPlan: everything a rank needs to run one step, as one flat, relocatable, versioned byte image.
//
// In one process it is passed by pointer; to another process or a device the same bytes are copied. All offsets are in
// bytes from the start of the image, all arrays are 8-byte aligned. The host decides what runs; the device holds the
// running state (RowState in backend/ops.h): the plan carries only differences to it. batch/ builds it, rank/ runs it.
//
//   StepPlanHeader | RowUpdate[num_row_updates] | BlockUpdate[num_block_updates] | BlockCopy[num_block_copies]
//                  | SeqStep[num_seqs] | int32 data: prompt tokens, block ids, bias ids, bias values (float bits), stop
//                  ids, drafts | token masks: uint32[num_masks, mask_words]
//
// Late masks are not in the image, which ends where they would begin: they follow from a token that is in flight, and
// come when it is known, while the forward pass of this step runs (StepExecutor::supply_masks).
//
// A decode row with k drafts runs 1 + k tokens: its newest known token and the drafts. The device compares each draft
// with the token that the model chooses in its place, keeps the longest prefix of equal ones and one chosen token more,
// and moves num_computed_tokens on by accepted + 1. The host learns the count with the result, after it has planned the
// next step: its num_computed_tokens of a decode row is an upper bound, the device's is exact. Of the first num_relaxed
// drafts also one that the model nearly chose is kept (relaxed acceptance, SampleParams in backend/ops.h).
#pragma once

#include <cstdint>

namespace spate {

constexpr uint32_t kStepPlanMagic = 0x4e4c5053;  // "SPLN"
constexpr uint32_t kStepPlanVersion = 5;
constexpr int kMaxLogitBias = 1024;  // entries of logit_bias a request may have
constexpr int kMaxStopIds = 64;      // eos and stop_token_ids together
constexpr int kMaxLogprobs = 20;     // top_logprobs a request may ask for
constexpr int32_t kNoToken = -1;  // sampled in place of a token where logits hold a NaN or +inf, or none that is finite
constexpr int kMaxDrafts = 16;    // draft tokens of a row in one step

struct StepPlanHeader {
  uint32_t magic = kStepPlanMagic;
  uint32_t version = kStepPlanVersion;
  uint64_t step_id = 0;  // 1, 2, 3 ...
  uint32_t total_bytes = 0;
  int32_t num_row_updates = 0;
  int32_t num_block_updates = 0;
  int32_t num_block_copies = 0;
  int32_t num_seqs = 0;             // sequences that run in this step
  int32_t num_tokens = 0;           // sum of their query_len
  int32_t num_sampled = 0;          // how many have kSample
  int32_t num_logits = 0;           // rows of logits that are sampled: the sum of their 1 + num_drafts
  int32_t num_prompt_logprobs = 0;  // how many have kPromptLogprobs
  int32_t max_query_len = 0;
  int32_t max_seq_len = 0;
  uint32_t row_updates_offset = 0;
  uint32_t block_updates_offset = 0;
  uint32_t block_copies_offset = 0;
  uint32_t seqs_offset = 0;
  uint32_t data_offset = 0;  // the int32 data
  uint32_t num_data = 0;     // int32 values in it
  uint32_t masks_offset = 0;
  int32_t num_masks = 0;
  int32_t mask_words = 0;  // of one mask: ceil(vocab_size / 32); 0 without masks
  int32_t masks_are_late = 0;  // 1: they come later
  int32_t unused = 0;
};

// Sampling parameters of a row as the device sees them.
struct RowSampling {
  uint64_t seed = 0;
  float temperature = 0;  // 0 = greedy
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t sampling_top_k = 0;    // 0 = all
  int32_t prompt_len = 0;        // tokens before this index are prompt: frequency and presence penalties skip them
  int32_t min_tokens_until = 0;  // stop_ids are masked while num_tokens is below this
  int32_t num_bias = 0;
  int32_t num_stop_ids = 0;
  int32_t num_logprobs = -1;  // -1 none; else so many top ones beside the sampled one's
  // Of drafts that relaxed acceptance may keep (SeqStep::num_relaxed).
  int32_t relaxed_top_k = 0;
  float relaxed_delta = 0;
  int32_t relaxed_end_id = -1;  // where the model chooses this token or one of stop_ids, that stands
  int32_t unused = 0;
};

// A sequence enters a row (new, resumed after preemption, forked). Its tokens are data[tokens_begin .. + num_tokens).
// Afterwards num_tokens[row] and num_computed_tokens[row] are as given; the block table comes as BlockUpdates.
struct RowUpdate {
  int32_t row = 0;
  int32_t num_tokens = 0;
  int32_t num_computed_tokens = 0;
  uint32_t tokens_begin = 0;  // index into data
  uint32_t bias_ids_begin = 0;
  uint32_t bias_values_begin = 0;  // float bits
  uint32_t stop_ids_begin = 0;
  int32_t num_prompt_logprobs = -1;  // with kPromptLogprobs: so many top ones beside the prompt token's; -1 none
  RowSampling sampling;
};

// block_table[row, first_block_idx .. + num_blocks) = data[blocks_begin .. + num_blocks)
struct BlockUpdate {
  int32_t row = 0;
  int32_t first_block_idx = 0;
  int32_t num_blocks = 0;
  uint32_t blocks_begin = 0;
};

struct BlockCopy {
  int32_t src_block_id = 0;
  int32_t dst_block_id = 0;
};

enum class SeqPhase : int32_t {
  kPrefill,  // catches up with known tokens; num_computed_tokens is exact
  kDecode,   // all but the newest known token are computed: runs that one and its drafts, and samples at each of them
};

enum SeqStepFlags : uint32_t {
  kSample = 1,          // the logits of the last query token (decode: of all of them) are sampled
  kPromptLogprobs = 2,  // prefill: log-probabilities of the prompt tokens that follow the query tokens are wanted
  kDraftsInRow = 4,     // the drafts are in the row already, behind its known tokens: the executor proposed them
  // Prefill, instead of kSample, at most one: a hidden state after the final norm is wanted.
  kPoolFirst = 8,   // that of the first query token
  kPoolLast = 16,   // that of the last query token
  kPoolSum = 32,    // the sum of those of all query tokens
};
constexpr uint32_t kPoolFlags = kPoolFirst | kPoolLast | kPoolSum;

struct SeqStep {
  int32_t row = 0;
  int32_t query_len = 0;  // decode: 1 + num_drafts
  SeqPhase phase = SeqPhase::kPrefill;
  uint32_t flags = 0;
  int32_t num_computed_tokens = 0;  // before the step; decode: the most that it can be
  int32_t num_drafts = 0;           // 0 .. kMaxDrafts
  uint32_t drafts_begin = 0;        // index into data, unless kDraftsInRow
  int32_t first_mask = -1;  // the masks of its logits rows are first_mask .. + num_drafts; -1: every token is allowed
  int32_t num_relaxed = 0;  // drafts that may stand though the model chose another token: so many of the first ones
};

static_assert(sizeof(StepPlanHeader) == 104 && sizeof(RowSampling) == 72 && sizeof(RowUpdate) == 104 &&
              sizeof(BlockUpdate) == 16 && sizeof(BlockCopy) == 8 && sizeof(SeqStep) == 36);

// Rows of logits that a sequence gives to the sampler.
constexpr int32_t num_logits_of(const SeqStep& seq) { return (seq.flags & kSample) != 0 ? 1 + seq.num_drafts : 0; }

// A token mask: bit id % 32 of word id / 32 is set where the token may be chosen.
constexpr int32_t mask_words_of(int64_t vocab_size) { return static_cast<int32_t>((vocab_size + 31) / 32); }
// The place that late masks need behind the image, at masks_offset.
constexpr uint64_t late_mask_bytes(const StepPlanHeader& plan) {
  return plan.masks_are_late != 0 ? uint64_t(plan.num_masks) * uint64_t(plan.mask_words) * sizeof(uint32_t) : 0;
}
constexpr bool mask_allows(const uint32_t* mask, int32_t id) { return (mask[id / 32] >> (id % 32) & 1) != 0; }

// Typed access to an image (host or device code of a back-end).
template <typename T>
const T* plan_array(const void* plan, uint32_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(plan) + offset);
}

}  // namespace spate

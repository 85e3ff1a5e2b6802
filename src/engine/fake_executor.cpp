#include "engine/fake_executor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "batch/plan_validate.h"

namespace spate {
namespace {

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

uint64_t hash_tokens(std::span<const int32_t> token_ids) {
  uint64_t hash = token_ids.size();
  for (const int32_t token_id : token_ids) hash = (hash + static_cast<uint64_t>(token_id) + 1) * 0x9e3779b97f4a7c15u;
  return mix(hash);
}

bool contains(std::span<const int32_t> ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

void add_masked_ids(const uint32_t* mask, std::vector<int32_t>& ids) {
  for (int32_t id = 0; id < kFakeVocabSize; ++id) {
    if (!mask_allows(mask, id)) ids.push_back(id);
  }
}

}  // namespace

int32_t fake_next_token(std::span<const int32_t> context, uint64_t seed, std::span<const int32_t> masked_ids) {
  uint64_t hash = mix(hash_tokens(context) + seed * 0x9e3779b97f4a7c15u);
  while (contains(masked_ids, static_cast<int32_t>(hash % kFakeVocabSize))) hash = mix(hash + 1);
  return static_cast<int32_t>(hash % kFakeVocabSize);
}

float fake_logprob(std::span<const int32_t> context, int32_t token_id) {
  return -static_cast<float>(mix(hash_tokens(context) + static_cast<uint64_t>(token_id)) % 1000) * 0.01f;
}

std::vector<float> fake_hidden_state(std::span<const int32_t> context) {
  const uint64_t hash = hash_tokens(context);
  return {static_cast<float>(hash % 1000), static_cast<float>(hash / 1000 % 1000)};
}

std::vector<float> fake_pooled(std::span<const int32_t> prompt, Pooling pooling) {
  if (pooling == Pooling::kLast) return fake_hidden_state(prompt);
  if (pooling == Pooling::kCls) return fake_hidden_state(prompt.first(1));
  std::vector<float> mean(2);
  for (size_t len = 1; len <= prompt.size(); ++len) {
    const std::vector<float> state = fake_hidden_state(prompt.first(len));
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += state[i];
  }
  for (float& value : mean) value /= static_cast<float>(prompt.size());
  return mean;
}

FakeAnswer fake_generate(const Request& request, int index, const EngineConfig& config) {
  const SamplingParams& params = request.sampling;
  const std::span<const int32_t> eos_ids =
      params.ignore_eos ? std::span<const int32_t>() : std::span<const int32_t>(request.eos_token_ids);
  std::vector<int32_t> masked(eos_ids.begin(), eos_ids.end());
  masked.insert(masked.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::vector<int32_t> context = request.prompt_token_ids;
  const std::unique_ptr<ConstraintCursor> cursor = request.constraint ? request.constraint->start() : nullptr;
  FakeAnswer answer;
  while (answer.finish_reason == FinishReason::kNone) {
    const auto num_output = static_cast<int>(answer.token_ids.size());
    const bool must_go_on = num_output < params.min_tokens;
    std::vector<int32_t> forbidden = must_go_on ? masked : std::vector<int32_t>();
    if (cursor != nullptr) {
      std::vector<uint32_t> mask(cursor->mask().begin(), cursor->mask().end());
      for (const int32_t id : eos_ids) mask[static_cast<size_t>(id) / 32] |= cursor->may_end() ? 1u << (id % 32) : 0u;
      add_masked_ids(mask.data(), forbidden);
    }
    const int32_t token_id = fake_next_token(context, *params.seed + static_cast<uint64_t>(index), forbidden);
    context.push_back(token_id);
    answer.token_ids.push_back(token_id);
    bool must_end = false;
    if (cursor != nullptr && !contains(eos_ids, token_id)) {
      CHECK(cursor->append(token_id).ok());
      CHECK(cursor->prepare_mask().ok());
      must_end = cursor->must_end();
    }
    if (!must_go_on && contains(eos_ids, token_id)) {
      answer.finish_reason = FinishReason::kStop;
    } else if (!must_go_on && contains(params.stop_token_ids, token_id)) {
      answer.finish_reason = FinishReason::kStop;
      answer.stop_token_id = token_id;
    } else if (must_end) {
      answer.finish_reason = FinishReason::kStop;
    } else if (num_output + 1 >= params.max_tokens || static_cast<int>(context.size()) >= config.max_seq_len()) {
      answer.finish_reason = FinishReason::kLength;
    }
  }
  return answer;
}

FakeExecutor::FakeExecutor(const EngineConfig& config, int num_layers)
    : config_(config),
      rows_(config.limits.max_num_seqs),
      slots_of_layer_(num_layers, std::vector<Slot>(static_cast<size_t>(config.num_kv_blocks) * config.limits.kv_block_size)) {
  for (Row& row : rows_) {
    row.token_ids.assign(config.limits.max_model_len, -1);
    row.block_table.assign(config.limits.max_blocks_per_seq(), -1);
  }
}

void FakeExecutor::submit(std::span<const std::byte> plan) {
  CHECK(plans_.size() < 2, "{} steps are in flight already", plans_.size());
  const Status status = validate_plan(
      plan, {.step = config_.limits, .num_kv_blocks = config_.num_kv_blocks, .vocab_size = kFakeVocabSize});
  CHECK(status.ok(), "{}", status.to_string());
  std::vector<uint64_t> copy(plan.size() / 8);
  std::memcpy(copy.data(), plan.data(), plan.size());
  plans_.push_back(std::move(copy));
}

// At the end of the plan, where they would be if they were not late.
void FakeExecutor::supply_masks(std::span<const uint32_t> masks) {
  CHECK(!plans_.empty());
  std::vector<uint64_t>& plan = plans_.back();
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  CHECK(masks.size_bytes() == late_mask_bytes(header) && plan.size() * 8 == header.total_bytes, "{} words of masks",
        masks.size());
  plan.resize(plan.size() + (masks.size() + 1) / 2);
  std::memcpy(plan.data() + plan.size() - (masks.size() + 1) / 2, masks.data(), masks.size_bytes());
}

// Runs the step as late as possible: what the host wrongly reuses meanwhile is noticed.
Status FakeExecutor::collect(StepResult& result) {
  CHECK(!plans_.empty());
  const std::vector<uint64_t> image = std::move(plans_.front());
  plans_.pop_front();
  const void* plan = image.data();
  const auto& header = *static_cast<const StepPlanHeader*>(plan);
  if (fail_at_step > 0 && header.step_id >= fail_at_step)
    return internal_error("the device is lost at step {}", header.step_id);
  CHECK(image.size() * 8 >= header.total_bytes + late_mask_bytes(header), "step {} lacks its masks", header.step_id);
  result.step_id = header.step_id;
  result.next_token_ids.clear();
  result.num_accepted.clear();
  result.logprobs.clear();
  result.prompt_logprobs.clear();
  result.hidden_states.clear();
  result.device_seconds = step_seconds ? step_seconds(header) : 0;

  update_rows(plan, header);
  copy_blocks(plan, header);
  const std::span seqs(plan_array<SeqStep>(plan, header.seqs_offset), header.num_seqs);
  for (const SeqStep& seq : seqs) {
    if ((seq.flags & kDraftsInRow) != 0) continue;
    Row& row = rows_[seq.row];
    std::copy_n(plan_array<int32_t>(plan, header.data_offset) + seq.drafts_begin, seq.num_drafts,
                row.token_ids.begin() + row.num_tokens);
  }
  for (const SeqStep& seq : seqs) write_tokens(seq, header.step_id);
  bool any_logprobs = false;
  for (const SeqStep& seq : seqs) {
    Row& row = rows_[seq.row];
    read_context(row, seq);
    if ((seq.flags & kPromptLogprobs) != 0) {
      std::vector<TokenLogprobs>& logprobs = result.prompt_logprobs.emplace_back();
      for (int p = row.num_computed_tokens;
           p < row.num_computed_tokens + seq.query_len && p + 1 < row.sampling.prompt_len; ++p) {
        TokenLogprobs entry{.token_id = row.token_ids[p + 1], .logprob = 0, .rank = 1, .top = {}};
        entry.logprob = fake_logprob(std::span(context_).first(p + 1), entry.token_id);
        for (int k = 0; k < row.num_prompt_logprobs; ++k) entry.top.push_back({k, -static_cast<float>(k)});
        logprobs.push_back(std::move(entry));
      }
    }
    if ((seq.flags & kPoolFlags) != 0) pool(seq, row, result);
    num_tokens_computed_ += seq.query_len;
    row.num_computed_tokens += seq.query_len - seq.num_drafts;
    if ((seq.flags & kSample) != 0) {
      const uint32_t* masks = plan_array<uint32_t>(plan, header.masks_offset);
      sample(seq, seq.first_mask < 0 ? nullptr : masks + seq.first_mask * header.mask_words, row, result);
      any_logprobs |= row.sampling.num_logprobs >= 0;
    }
  }
  if (!any_logprobs) result.logprobs.clear();
  if (header.num_logits == header.num_sampled) result.num_accepted.clear();
  max_query_len_seen_ = std::max(max_query_len_seen_, header.max_query_len);
  return ok_status();
}

void FakeExecutor::update_rows(const void* plan, const StepPlanHeader& header) {
  const int32_t* data = plan_array<int32_t>(plan, header.data_offset);
  for (const RowUpdate& update :
       std::span(plan_array<RowUpdate>(plan, header.row_updates_offset), header.num_row_updates)) {
    Row& row = rows_[update.row];
    std::ranges::fill(row.token_ids, -1);  // nothing of the row's former sequence may be used
    std::ranges::fill(row.block_table, -1);
    std::copy_n(data + update.tokens_begin, update.num_tokens, row.token_ids.begin());
    row.stop_ids.assign(data + update.stop_ids_begin, data + update.stop_ids_begin + update.sampling.num_stop_ids);
    row.num_tokens = update.num_tokens;
    row.num_computed_tokens = update.num_computed_tokens;
    row.num_prompt_logprobs = update.num_prompt_logprobs;
    row.pools = false;
    row.sampling = update.sampling;
  }
  for (const BlockUpdate& update :
       std::span(plan_array<BlockUpdate>(plan, header.block_updates_offset), header.num_block_updates)) {
    std::copy_n(data + update.blocks_begin, update.num_blocks,
                rows_[update.row].block_table.begin() + update.first_block_idx);
  }
}

void FakeExecutor::copy_blocks(const void* plan, const StepPlanHeader& header) {
  for (const BlockCopy& copy :
       std::span(plan_array<BlockCopy>(plan, header.block_copies_offset), header.num_block_copies)) {
    const auto first = [this](int32_t block_id) {
      return slots_of_layer_[0].begin() + static_cast<ptrdiff_t>(block_id) * config_.limits.kv_block_size;
    };
    std::copy_n(first(copy.src_block_id), config_.limits.kv_block_size, first(copy.dst_block_id));
    ++num_blocks_copied_;
  }
}

bool FakeExecutor::holds(int32_t block_id, std::span<const int32_t> token_ids, int first_position) const {
  const auto slots = std::span(slots_of_layer_[0]).subspan(static_cast<size_t>(block_id) * config_.limits.kv_block_size);
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (slots[i].token_id != token_ids[i] || slots[i].position != first_position + static_cast<int>(i)) return false;
  }
  return true;
}

FakeExecutor::Slot& FakeExecutor::slot_at(const Row& row, int position) {
  const int32_t block_id = row.block_table[position / config_.limits.kv_block_size];
  CHECK(block_id >= 0, "position {} has no block", position);
  const int block_size = config_.limits.kv_block_size;
  return slots_of_layer_[layer_idx_][static_cast<size_t>(block_id) * block_size + position % block_size];
}

void FakeExecutor::write_tokens(const SeqStep& seq, uint64_t step_id) {
  Row& row = rows_[seq.row];
  row.pools |= (seq.flags & kPoolFlags) != 0;
  const bool decodes = seq.phase == SeqPhase::kDecode;
  CHECK(
      decodes ? row.num_computed_tokens <= seq.num_computed_tokens : row.num_computed_tokens == seq.num_computed_tokens,
      "row {}: the device has computed {} tokens, the host believes {}", seq.row, row.num_computed_tokens,
      seq.num_computed_tokens);
  CHECK(row.num_computed_tokens + seq.query_len <= num_places(row) + seq.num_drafts, "row {}: token {} is not known",
        seq.row, row.num_tokens);
  const bool catches_up = row.num_computed_tokens + seq.query_len == num_places(row) + seq.num_drafts;
  const bool samples = (seq.flags & kSample) != 0;
  // A row that wants no more drafts runs along with the next layer.
  CHECK(layer_idx_ > 0 ? catches_up || !samples : samples == (catches_up && !row.pools));
  for (int position = row.num_computed_tokens; position < row.num_computed_tokens + seq.query_len; ++position) {
    Slot& slot = slot_at(row, position);
    CHECK(slot.step_id != step_id, "row {} and row {} write the same slot in step {}", slot.row, seq.row, step_id);
    slot = {.token_id = token_of_place(row, position),
            .position = position,
            .step_id = step_id,
            .row = seq.row,
            .is_of_draft = reads_next_tokens && decodes};
  }
}

void FakeExecutor::read_context(const Row& row, const SeqStep& seq) {
  const int seq_len = row.num_computed_tokens + seq.query_len;
  context_.clear();
  context_.insert(context_.end(), row.token_ids.begin(), row.token_ids.begin() + tokens_ahead());
  for (int position = 0; position < seq_len; ++position) {
    const Slot& slot = slot_at(row, position);
    const int left_in_block = config_.limits.kv_block_size - position % config_.limits.kv_block_size;
    const bool may_differ = left_in_block <= tokens_ahead();
    CHECK(slot.position == position && (may_differ || slot.token_id == token_of_place(row, position)),
          "key {} of {} holds token {} of position {}, expected token {}", position, seq_len, slot.token_id,
          slot.position, token_of_place(row, position));
    CHECK(!slot.is_of_draft || seq.phase == SeqPhase::kDecode, "key {} of {} is that of a draft", position, seq_len);
    context_.push_back(slot.token_id);
  }
}

void FakeExecutor::pool(const SeqStep& seq, const Row& row, StepResult& result) const {
  const int first = row.num_computed_tokens, end = first + seq.query_len;
  std::vector<float>& sum = result.hidden_states.emplace_back(2, 0.0f);
  const int begin = (seq.flags & kPoolLast) != 0 ? end - 1 : first;
  for (int position = begin; position < ((seq.flags & kPoolFirst) != 0 ? first + 1 : end); ++position) {
    const std::vector<float> state = fake_hidden_state(std::span(context_).first(position + 1));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += state[i];
  }
}

int32_t FakeExecutor::choose_token(const Row& row, std::span<const int32_t> context, const uint32_t* mask) const {
  const auto num_tokens = static_cast<int>(context.size());
  if (is_nonfinite && is_nonfinite(row.sampling, num_tokens)) return kNoToken;
  const bool masked = num_tokens < row.sampling.min_tokens_until;
  std::vector<int32_t> forbidden = masked ? row.stop_ids : std::vector<int32_t>();
  if (mask != nullptr) add_masked_ids(mask, forbidden);
  return fake_next_token(context, row.sampling.seed, forbidden);
}

// The context has been read up to the last draft, which stands behind the row's known tokens.
void FakeExecutor::sample(const SeqStep& seq, const uint32_t* mask, Row& row, StepResult& result) {
  int num_accepted = 0;
  while (true) {
    const int num_tokens = row.num_tokens;
    const std::span<const int32_t> context = std::span(context_).first(num_tokens);
    int32_t token_id = choose_token(row, context, mask);
    if (miss_rate > 0 && rng_.uniform() < static_cast<float>(miss_rate)) {
      token_id = fake_next_token(context, rng_.next_u64(), {});
    }
    TokenLogprobs entry{.token_id = token_id, .logprob = 0, .rank = 1, .top = {}};
    if (row.sampling.num_logprobs >= 0) {
      entry.logprob = fake_logprob(context, token_id);
      for (int k = 0; k < row.sampling.num_logprobs; ++k) entry.top.push_back({k, -static_cast<float>(k)});
    }
    result.next_token_ids.push_back(token_id);
    result.logprobs.push_back(std::move(entry));
    ++row.num_tokens;
    const bool accepted = num_accepted < seq.num_drafts && row.token_ids[num_tokens] == token_id && token_id >= 0;
    if (num_tokens < config_.limits.max_model_len) row.token_ids[num_tokens] = token_id;
    if (!accepted) break;
    ++num_accepted;
    ++row.num_computed_tokens;
    if (mask != nullptr) mask += mask_words_of(kFakeVocabSize);  // that behind the draft
  }
  result.num_accepted.push_back(num_accepted);
  if (config_.draft_source == DraftSource::kExecutor) propose_drafts(row);
}

void FakeExecutor::propose_drafts(Row& row) {
  std::ranges::fill(row.token_ids.begin() + std::min(row.num_tokens, config_.limits.max_model_len), row.token_ids.end(),
                    -1);
  const int end = std::min(row.num_tokens + config_.num_drafts, config_.limits.max_model_len);
  for (int i = row.num_tokens; i < end; ++i) {
    const bool hit = rng_.uniform() < static_cast<float>(draft_hit_rate);
    row.token_ids[i] =
        hit ? choose_token(row, std::span(row.token_ids).first(i)) : static_cast<int32_t>(rng_.below(kFakeVocabSize));
  }
}

}  // namespace spate

#include "server/test_model.h"

#include <limits>
#include <thread>

#include "base/check.h"
#include "base/test_support.h"

namespace spate {
namespace {

// What a sequence with one of kPoolFlags gets.
std::vector<float> hidden_state_of(const std::vector<int32_t>& token_ids, const SeqStep& seq) {
  const int first = seq.num_computed_tokens, end = first + seq.query_len;
  std::vector<float> sum(4);
  for (int position = (seq.flags & kPoolLast) ? end - 1 : first; position < end; ++position) {
    sum[0] += static_cast<float>(token_ids[static_cast<size_t>(position)]);
    sum[1] += static_cast<float>(position);
    sum[2] += 1;
    sum[3] += 2;
    if (seq.flags & kPoolFirst) break;
  }
  return sum;
}

}  // namespace

void EchoExecutor::submit(std::span<const std::byte> plan) {
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  const auto* data = plan_array<int32_t>(plan.data(), header.data_offset);
  const auto* updates = plan_array<RowUpdate>(plan.data(), header.row_updates_offset);
  for (int i = 0; i < header.num_row_updates; ++i) {
    const RowUpdate& update = updates[i];
    const int32_t* tokens = data + update.tokens_begin;
    rows_[update.row] = {.token_ids = {tokens, tokens + update.num_tokens}, .sampling = update.sampling};
  }
  ++num_in_flight_;
  newest_plan_.assign(plan.begin(), plan.end());
  if (header.masks_are_late == 0) run(newest_plan_);
}

void EchoExecutor::supply_masks(std::span<const uint32_t> masks) {
  const auto words = std::as_bytes(masks);
  newest_plan_.insert(newest_plan_.end(), words.begin(), words.end());
  run(newest_plan_);
}

void EchoExecutor::run(std::span<const std::byte> plan) {
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  StepResult result{.step_id = header.step_id};
  const auto* seqs = plan_array<SeqStep>(plan.data(), header.seqs_offset);
  for (int i = 0; i < header.num_seqs; ++i) {
    Row& row = rows_[seqs[i].row];
    if (seqs[i].flags & kPromptLogprobs) {
      std::vector<TokenLogprobs> logprobs;
      const int end = std::min<int>(seqs[i].num_computed_tokens + seqs[i].query_len + 1, row.sampling.prompt_len);
      for (int pos = seqs[i].num_computed_tokens + 1; pos < end; ++pos) {
        const int rank = is_broken(row) ? 0 : 1;
        logprobs.push_back({.token_id = row.token_ids[static_cast<size_t>(pos)], .logprob = -0.25f, .rank = rank});
      }
      result.prompt_logprobs.push_back(std::move(logprobs));
    }
    if (seqs[i].flags & kPoolFlags) {
      result.hidden_states.push_back(hidden_state_of(row.token_ids, seqs[i]));
      if (is_broken(row)) result.hidden_states.back()[0] = std::numeric_limits<float>::quiet_NaN();
    }
    const auto* masks = plan_array<uint32_t>(plan.data(), header.masks_offset);
    const uint32_t* mask = seqs[i].first_mask < 0 ? nullptr : masks + seqs[i].first_mask * header.mask_words;
    if (seqs[i].flags & kSample) run_row(row, mask, result);
  }
  results_.push_back(std::move(result));
}

void EchoExecutor::run_row(Row& row, const uint32_t* mask, StepResult& result) {
  const auto prompt_len = static_cast<size_t>(row.sampling.prompt_len);
  const std::vector<int32_t>& answer =
      answer_to({row.token_ids.begin(), row.token_ids.begin() + row.sampling.prompt_len});
  const size_t num_done = row.token_ids.size() - prompt_len;
  int32_t next =
      answer.back() == eos_token_id_ ? answer[std::min(num_done, answer.size() - 1)] : answer[num_done % answer.size()];
  if (next == eos_token_id_ && is_broken(row)) {
    result.next_token_ids.push_back(kNoToken);
    result.logprobs.emplace_back();
    return;
  }
  if (mask != nullptr && !mask_allows(mask, next)) {
    for (next = 0; !mask_allows(mask, next);) ++next;
  }
  row.token_ids.push_back(next);
  result.next_token_ids.push_back(next);
  TokenLogprobs logprobs{.token_id = next, .logprob = -0.5f, .rank = 1};
  const bool is_by_id = row.sampling.num_logprobs == kLogprobsById;
  for (int32_t id = 0; is_by_id && id < tokenizer_.vocab_size(); ++id) {
    logprobs.top.push_back({id, id == next ? -0.5f : -9.0f});
  }
  for (int i = 0; !is_by_id && i < row.sampling.num_logprobs; ++i) {
    logprobs.top.push_back({i == 0 ? next : 9 + i, -0.5f - static_cast<float>(i)});
  }
  result.logprobs.push_back(std::move(logprobs));
}

bool EchoExecutor::is_broken(const Row& row) {
  const auto prompt_end = row.token_ids.begin() + row.sampling.prompt_len;
  return tokenizer_.decode(answer_to({row.token_ids.begin(), prompt_end}), false).starts_with("BROKEN");
}

Status EchoExecutor::collect(StepResult& result) {
  if (fails) return internal_error("the test's device is lost");
  if (const int milliseconds = step_milliseconds) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  result = std::move(results_.front());
  results_.pop_front();
  --num_in_flight_;
  return ok_status();
}

const std::vector<int32_t>& EchoExecutor::answer_to(const std::vector<int32_t>& prompt) {
  std::vector<int32_t>& answer = answers_[prompt];
  if (!answer.empty()) return answer;
  std::string text = tokenizer_.decode(prompt, false);
  const std::string user = "<|im_start|>user\n", end = "<|im_end|>";
  if (const size_t pos = text.rfind(user); pos != std::string::npos) {
    text = text.substr(pos + user.size());
    text = text.substr(0, text.find(end));
  }
  answer = tokenizer_.encode(text);
  if (!text.starts_with("FOREVER")) answer.push_back(eos_token_id_);
  return answer;
}

TestModel::TestModel() {
  Result<std::unique_ptr<const Tokenizer>> loaded = Tokenizer::load(repo_root() / "models/mini-qwen3");
  CHECK(loaded.ok(), "{}", loaded.status().message());
  tokenizer = std::move(*loaded);
  const int32_t eos_token_id = tokenizer->token_id("<|im_end|>").value();
  executor = std::make_unique<EchoExecutor>(*tokenizer, eos_token_id);
  const EngineConfig config{.limits = {.max_model_len = 512, .max_num_seqs = 8, .max_num_batched_tokens = 512},
                            .num_kv_blocks = 512,
                            .max_num_waiting = 64};
  auto created = Engine::create(config, *executor);
  CHECK(created.ok(), "{}", created.status().message());
  engine = std::move(*created);
  engine->start();

  serving.engine = engine;
  serving.tokenizer = tokenizer;
  auto chat_template = ChatTemplate::parse(tokenizer->find_chat_template()->source, {});
  CHECK(chat_template.ok(), "{}", chat_template.status().message());
  serving.chat_template = std::make_shared<ChatTemplate>(std::move(*chat_template));
  serving.names = {"test-model", "org/alias"};
  serving.root = "models/mini-qwen3";
  serving.created = 1700000000;
  serving.vocab_size = tokenizer->vocab_size();
  serving.hidden_size = 4;
  serving.pooling = {.pooling = Pooling::kMean, .normalize = true, .source = "the test", .problem = {}};
  serving.eos_token_ids = {eos_token_id};
  serving.system_fingerprint = "spate-test";
}

ServerConfig test_server_config() {
  ServerConfig config;
  config.port = 0;
  config.handle_signals = false;
  config.uvicorn_log_level = "warning";
  config.log_stats_interval = 0;
  return config;
}

TestModel::~TestModel() { engine->stop(); }

}  // namespace spate

#include "server/embedding.h"

#include <cmath>
#include <utility>

#include "server/frontend.h"

namespace spate {

void shape_embedding(std::vector<float>& vector, int64_t dimensions, bool normalize) {
  if (dimensions > 0) vector.resize(static_cast<size_t>(dimensions));
  if (!normalize) return;
  double sum = 0;
  for (const float value : vector) sum += double{value} * value;
  if (sum == 0) return;
  const double factor = 1 / std::sqrt(sum);
  for (float& value : vector) value = static_cast<float>(value * factor);
}

EmbeddingRun::EmbeddingRun(Context context, Prompts prompts, RequestId first_id, std::function<void(Embeddings)> on_done)
    : context_(context),
      prompts_(std::move(prompts)),
      first_id_(first_id),
      count_(prompts_.token_ids.size()),
      on_done_(std::move(on_done)) {
  embeddings_.vectors.resize(count_);
  for (const auto& prompt : prompts_.token_ids) embeddings_.num_prompt_tokens += static_cast<int64_t>(prompt.size());
}

Status EmbeddingRun::submit() {
  std::vector<Request> requests(count_);
  for (size_t i = 0; i < count_; ++i) {
    requests[i].id = first_id_ + i;
    requests[i].prompt_token_ids = prompts_.token_ids[i];
    requests[i].pooling = prompts_.pooling;
    requests[i].priority = prompts_.priority;
    requests[i].reuse_scope = prompts_.reuse_scope;
    requests[i].sink = shared_from_this();
  }
  return context_.engine->submit_all(std::move(requests));
}

void EmbeddingRun::cancel() {
  for (size_t i = 0; i < count_; ++i) context_.engine->cancel(first_id_ + i);
}

void EmbeddingRun::push(std::vector<Output> outputs) {
  const std::chrono::duration<double> age = std::chrono::steady_clock::now() - arrival_;
  for (Output& output : outputs) {
    const size_t i = output.request_id - first_id_;
    ++num_ended_;
    embeddings_.num_cached_tokens += output.num_cached_tokens;
    embeddings_.vectors[i] = std::move(output.hidden_state);
    if (embeddings_.error.ok() && output.finish_reason == FinishReason::kError) embeddings_.error = output.error;
    if (embeddings_.error.ok() && output.finish_reason == FinishReason::kAbort) {
      embeddings_.error = unavailable("the request was aborted");
    }
    if (context_.metrics == nullptr) continue;
    context_.metrics->observe_finished({.queue_seconds = output.queue_seconds,
                                        .e2e_seconds = age.count(),
                                        .num_prompt_tokens = static_cast<int>(prompts_.token_ids[i].size()),
                                        .num_cached_tokens = output.num_cached_tokens,
                                        .finish_reason = output.finish_reason});
  }
  if (num_ended_ == count_) context_.output_pool.post([self = shared_from_this()] { self->finish(); });
}

void EmbeddingRun::finish() {
  if (embeddings_.error.ok()) {
    for (std::vector<float>& vector : embeddings_.vectors) {
      shape_embedding(vector, prompts_.dimensions, prompts_.normalize);
    }
  }
  std::exchange(on_done_, nullptr)(std::move(embeddings_));
}

ApiResult<std::shared_ptr<EmbeddingRun>> Frontend::embed(const EmbeddingsRequest& request,
                                                         std::function<void(Embeddings)> on_done) {
  const PoolingConfig& pooling = model_.pooling;
  if (pooling.pooling == Pooling::kNone) {
    return not_supported(
        "model", fmt::format("{}: there is no vector of a text without one. Start the server with --pooler-config last "
                             "(or mean, cls).",
                             pooling.problem.empty() ? "this model's files name no pooling" : pooling.problem));
  }
  if (request.dimensions.value_or(1) > model_.hidden_size) {
    return bad_request("dimensions", fmt::format("dimensions must be in [1, {}], this model's hidden size, got {}",
                                                 model_.hidden_size, *request.dimensions));
  }
  EmbeddingRun::Prompts prompts{.token_ids = {},
                                .pooling = pooling.pooling,
                                .dimensions = request.dimensions.value_or(0),
                                .normalize = request.normalize.value_or(pooling.normalize),
                                .priority = request.priority,
                                .reuse_scope = request.cache_salt};
  // Nothing is generated: a prompt may fill the context, and -1 keeps as much as that.
  const int limit = max_model_len();
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const std::string param = !request.input_names.empty() ? request.input_names[i]
                              : request.inputs.size() == 1 ? "input"
                                                           : fmt::format("input[{}]", i);
    std::vector<int32_t> prompt;
    if (const auto* text = std::get_if<std::string>(&request.inputs[i])) {
      ApiResult<std::vector<int32_t>> token_ids =
          encode_prompt(*text, request.add_special_tokens, param, request.truncate_prompt_tokens.has_value());
      if (!token_ids.ok()) return token_ids.error();
      prompt = std::move(*token_ids);
    } else {
      prompt = std::get<std::vector<int32_t>>(request.inputs[i]);
    }
    if (auto error = fit_prompt(request, limit + 1, model_.vocab_size, param, prompt)) return *error;
    if (static_cast<int64_t>(prompt.size()) > limit) {
      return context_length_error(limit, 0, static_cast<int64_t>(prompt.size()), param);
    }
    prompts.token_ids.push_back(std::move(prompt));
  }
  const RequestId first_id = next_id_.fetch_add(prompts.token_ids.size());
  auto run = std::make_shared<EmbeddingRun>(EmbeddingRun::Context{model_.engine, output_pool_, metrics_},
                                            std::move(prompts), first_id, std::move(on_done));
  const Status status = run->submit();
  if (status.ok()) return run;
  return submit_error(status);
}

}  // namespace spate

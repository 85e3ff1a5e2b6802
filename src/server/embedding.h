// EmbeddingRun: the vectors of one request of /v1/embeddings while the engine works on them; beside whatever else runs.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/request.h"
#include "engine/engine.h"
#include "server/api_request.h"
#include "server/response_json.h"
#include "server/serving_metrics.h"
#include "server/work_pool.h"

namespace spate {

struct Embeddings {
  std::vector<std::vector<float>> vectors;  // by input
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  Status error;  // then `vectors` is not complete
};

class EmbeddingRun final : public OutputSink, public std::enable_shared_from_this<EmbeddingRun> {
 public:
  struct Context {
    std::shared_ptr<Engine> engine;  // also of a run that has ended and is asked to cancel
    WorkPool& output_pool;           // outlives the run, as do the following
    ServingMetrics* metrics;  // may be null
  };
  struct Prompts {
    std::vector<std::vector<int32_t>> token_ids;  // each not empty and short enough
    Pooling pooling = Pooling::kLast;
    int64_t dimensions = 0;  // kept of each vector; 0: all
    bool normalize = true;
    int priority = 0;
    std::string reuse_scope;
  };
  EmbeddingRun(Context context, Prompts prompts, RequestId first_id, std::function<void(Embeddings)> on_done);

  // Gives the prompts to the engine, all or none. On an error on_done is not called; else once, on the output thread.
  Status submit();
  void cancel();                                    // any thread
  void push(std::vector<Output> outputs) override;  // engine thread

 private:
  void finish();  // output thread

  const Context context_;
  Prompts prompts_;
  const RequestId first_id_;
  const size_t count_;
  const std::chrono::steady_clock::time_point arrival_ = std::chrono::steady_clock::now();
  std::function<void(Embeddings)> on_done_;
  // The engine thread's until the last prompt has ended, then the output thread's.
  Embeddings embeddings_;
  size_t num_ended_ = 0;
};

// The first `dimensions` numbers (0: all), brought to length 1 when asked; a vector of zeros stays one.
void shape_embedding(std::vector<float>& vector, int64_t dimensions, bool normalize);

// The answers of /v1/embeddings, /score and /rerank.
std::string embeddings_json(const EmbeddingsRequest& request, const ResponseInfo& info, const Embeddings& embeddings);
std::string llama_embeddings_json(const EmbeddingsRequest& request, const ResponseInfo& info,
                                  const Embeddings& embeddings);
std::string score_json(const ScoreRequest& request, const ResponseInfo& info, const Embeddings& embeddings);
std::string rerank_json(const ScoreRequest& request, const ResponseInfo& info, const Embeddings& embeddings);

}  // namespace spate

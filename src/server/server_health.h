// ServerHealth: whether the server can answer, and what those hear who ask for it or come too early.
//
//   ServerHealth health(registry);
//   health.set_progress(0.5); ... health.set_state(ServerState::kReady);
//   health.answer_health(responder);           // /health: 200, or 503 with the reason
//   health.answer_unready(model, responder);   // a request for a model that cannot take it: 503
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "server/http_server.h"
#include "server/model_registry.h"
#include "server/routes.h"

namespace spate {

enum class ServerState : uint8_t { kLoading, kReady, kDraining };

// Thread-safe.
class ServerHealth {
 public:
  explicit ServerHealth(const ModelRegistry& models) : models_(models) {}

  ServerState state() const { return state_; }
  void set_state(ServerState state) { state_ = state; }
  double progress() const { return progress_; }  // of loading, 0 to 1
  void set_progress(double progress) { progress_ = progress; }
  void set_stuck(bool is_stuck) { is_stuck_ = is_stuck; }  // an engine, by its log: /livez fails

  void answer_health(HttpResponder& responder) const;
  void answer_livez(HttpResponder& responder) const;
  // The status says why, in the envelope of `endpoint` and beside it, where probes of several engines look. `model`:
  // that the request wants; null: any, or none is there.
  void answer_unready(const ServedModel* model, HttpResponder& responder, Endpoint endpoint = Endpoint::kHealth) const;

 private:
  Status engines(const ServedModel* named) const;

  const ModelRegistry& models_;
  std::atomic<ServerState> state_{ServerState::kLoading};
  std::atomic<double> progress_{0};
  std::atomic<bool> is_stuck_{false};
};

// Of its engine; of a model that is not ready: ok.
Status engine_health(const ServedModel& model);

}  // namespace spate

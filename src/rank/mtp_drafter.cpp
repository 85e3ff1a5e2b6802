#include "rank/mtp_drafter.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

class MtpHead final : public HiddenStateHead {
 public:
  explicit MtpHead(Model& model) : model_(model) {}
  const ModelConfig& config() const override { return model_.config(); }
  const std::vector<KvLayerDesc>& kv_layers() const override { return model_.mtp_kv_layers(); }
  int64_t known_width() const override { return config().hidden_size; }
  int num_layers() const override { return static_cast<int>(kv_layers().size()); }
  Tensor forward(const StepContext& ctx, const Run& run) override {
    return model_.mtp_forward(ctx,
                              {.hidden_states = run.known, .mtp_idx = run.layer_idx, .source_idx = run.source_idx});
  }
  Tensor hidden_states(const StepBatch& batch) const override { return model_.hidden_states(batch); }
  Tensor compute_logits(const StepContext& ctx, int layer_idx, const Tensor& hidden_states,
                        const Tensor& row_ids) override {
    return model_.compute_mtp_logits(ctx, layer_idx, hidden_states, row_ids);
  }

 private:
  Model& model_;
};

class MtpDrafter final : public HiddenStateDrafter {
 public:
  explicit MtpDrafter(Model& model) : head_(model) {}
  Status start(Rank& target, Communicators communicators, const ModelOptions& options) {
    return HiddenStateDrafter::start(target, head_, std::move(communicators), options);
  }
  bool needs_all_tokens() const override { return true; }
  void follow(const StepContext& ctx, const Tensor& hidden_states) override { keep(ctx, hidden_states, 0); }

 private:
  MtpHead head_;
};

}  // namespace

int num_mtp_layers_for(const ModelConfig& config, int num_drafts) {
  return static_cast<int>(std::min<int64_t>(config.num_mtp_layers, num_drafts));
}

HiddenStateDrafter::Memory mtp_drafter_memory(const Device& device, const ModelConfig& config, const ModelMemory& model,
                                              const ModelOptions& options) {
  return HiddenStateDrafter::memory(device, config.hidden_size, config.hidden_size, model.mtp_kv_layers, options,
                                    static_cast<int>(model.mtp_kv_layers.size()));
}

Result<std::unique_ptr<Drafter>> make_mtp_drafter(Rank& target, Communicators communicators,
                                                  const ModelOptions& options) {
  auto drafter = std::make_unique<MtpDrafter>(target.model());
  RETURN_IF_ERROR(drafter->start(target, std::move(communicators), options));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

}  // namespace spate

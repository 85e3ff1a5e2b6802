#include "rank/eagle_drafter.h"

#include <utility>

namespace spate {
namespace {

class EagleDrafter final : public HiddenStateDrafter, private HiddenStateHead {
 public:
  explicit EagleDrafter(std::unique_ptr<EagleHead> head) : head_(std::move(head)) {}

  Status start(Rank& target, Communicators communicators, const ModelOptions& options) {
    RETURN_IF_ERROR(HiddenStateDrafter::start(target, *this, std::move(communicators), options));
    // The drafter outlives the rank, whose model calls this.
    target.model().set_input_follower([this](const StepContext& ctx, int64_t layer_idx, const Tensor& layer_input) {
      const auto& layer_idxs = head_->config().layer_idxs;
      for (size_t i = 0; i < layer_idxs.size(); ++i) {
        if (layer_idxs[i] == layer_idx) keep(ctx, layer_input, static_cast<int64_t>(i) * layer_input.dim(1));
      }
    });
    return ok_status();
  }

 private:
  const ModelConfig& config() const override { return head_->config().layer; }
  const std::vector<KvLayerDesc>& kv_layers() const override { return head_->kv_layers(); }
  int64_t known_width() const override { return EagleConfig::kNumInputs * config().hidden_size; }
  Tensor forward(const StepContext& ctx, const Run& run) override {
    return head_->forward(ctx, run.known, run.source_idx >= 0);
  }
  Tensor hidden_states(const StepBatch& batch) const override { return head_->hidden_states(batch); }
  Tensor compute_logits(const StepContext& ctx, int /*layer_idx*/, const Tensor& hidden_states,
                        const Tensor& row_ids) override {
    return head_->compute_logits(ctx, hidden_states, row_ids);
  }

  const std::unique_ptr<EagleHead> head_;
};

}  // namespace

HiddenStateDrafter::Memory eagle_drafter_memory(const Device& device, const EagleConfig& config,
                                                const ModelMemory& head, const ModelOptions& options) {
  const int64_t width = config.layer.hidden_size;
  HiddenStateDrafter::Memory memory =
      HiddenStateDrafter::memory(device, EagleConfig::kNumInputs * width, width, head.kv_layers, options);
  memory.workspace_bytes += head.workspace_bytes;
  return memory;
}

Result<std::unique_ptr<Drafter>> make_eagle_drafter(Rank& target, const EagleConfig& config,
                                                    Communicators communicators, const ModelOptions& options,
                                                    uint64_t dummy_seed) {
  const TensorParallel tp{.rank = communicators.tp->rank(), .size = communicators.tp->size()};
  ASSIGN_OR_RETURN(std::unique_ptr<EagleHead> head,
                   EagleHead::create(config, target.model(), target.device(), tp, options));
  RETURN_IF_ERROR(options.source != nullptr ? head->load(*options.source) : head->load_dummy(dummy_seed));
  auto drafter = std::make_unique<EagleDrafter>(std::move(head));
  RETURN_IF_ERROR(drafter->start(target, std::move(communicators), options));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

}  // namespace spate

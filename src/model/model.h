// Model: token ids to logits on one rank. Weights and workspace are allocated by create(); a step allocates nothing.
//
// Owned and called by one rank thread; the device outlives it. Every rank of a tensor-parallel group makes its own with
// its TensorParallel and calls the same functions in the same order (they meet in collectives).
//
//   auto model = Model::create(config, device, {.rank = 0, .size = 2}, options);
//   model->load(checkpoint, progress);
//   const Tensor hidden_states = model->forward(ctx);                          // [num_outputs, hidden_size] act
//   const Tensor logits = model->compute_logits(ctx, hidden_states, row_ids);  // [num_logits, vocab_size] f32, rank 0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "core/step_limits.h"
#include "layer/product.h"
#include "layer/step_context.h"
#include "quant/quantization.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace spate {

struct ModelOptions {
  DType act_dtype = DType::kBf16;        // kBf16: weights and activations in bf16; kF32: both in f32
  DType kv_dtype = DType::kBf16;         // act_dtype, kBf16 or kI8
  Quantization quantization;             // of matrices that the checkpoint has as floats
  const WeightSource* source = nullptr;  // the checkpoint that load() will get: its codes stay codes; null: floats
  WeightSupport supports_weight;         // what the device computes with; empty: all. Other codes become floats
  StepLimits limits;                     // max_model_len: positions that may occur; 0: max_position_embeddings
  Range layers;                          // the layers to make, under their own numbers; count 0: all
  int64_t num_mtp_layers = 0;            // layers for multi-token prediction to make beside them
  WeightCacheOptions weight_cache;       // where load() finds and keeps packed weights
  int min_expanded_query_len = 0;        // Device::min_expanded_query_len() of latent_shape()
};

// Of a model with latent attention.
LatentShape latent_shape(const ModelConfig& config, DType act_dtype);

// What a rank's model takes, computed without a device. A back-end's packing may add padding to the weights.
struct ModelMemory {
  int64_t num_parameters = 0;          // of the whole model, tied ones once
  int64_t weight_bytes = 0;            // of this rank: matrices, vectors, rope table
  int64_t workspace_bytes = 0;         // of this rank
  // Of this rank, as Model::kv_layers() and mtp_kv_layers(): the device says what their blocks take.
  std::vector<KvLayerDesc> kv_layers, mtp_kv_layers;
};

// The weights of a model by the names of its checkpoint (without ".weight"), for tools that rewrite checkpoints.
struct ModelOutline {
  struct Layer {
    std::string name;               // "model.layers.3": all its weights lie below
    std::vector<Product> products;  // in the order in which they run
  };
  std::string embed_tokens;
  std::vector<Layer> layers;
  std::string norm;
  std::string lm_head;
};

// A run of one layer for multi-token prediction: it joins what is known at a token with the token after it, and guesses
// the one after that. The batch is of the tokens that are known: its token_ids alone are those of the tokens after
// them. The layer's place in the KV cache is that of the token, so that block tables and slots are those of forward().
struct MtpRun {
  // [num_tokens, hidden_size] act. Of forward(), or to guess further, of mtp_forward(): may be what it returned last.
  Tensor hidden_states;
  int64_t mtp_idx = 0;      // the layer to run
  int64_t source_idx = -1;  // the layer whose mtp_forward() gave hidden_states; -1: forward()
};

// What a rank runs in its steps: a model, or the layer of one that drafts for it (rank/mtp_drafter.h).
class StepModel {
 public:
  virtual ~StepModel() = default;

  // What each layer stores for a token, of this rank: one KvView a layer goes into StepContext::kv.
  virtual const std::vector<KvLayerDesc>& kv_layers() const = 0;
  virtual const ModelConfig& config() const = 0;
  // True: batch.inputs.token_ids are to be those of the tokens behind the step's own, and batch.decodes_only is to be set.
  virtual bool reads_next_tokens() const { return false; }

  // Hidden states after the last layer, before the final norm. [num_outputs, hidden_size] act of batch.output_rows
  // where they are defined; the last layer then runs for these rows alone. Without them, or with a tap: a row for every
  // token of the step. A row is bit-identical either way on a device made with deterministic = true. Valid until the
  // next forward().
  virtual Tensor forward(const StepContext& ctx) = 0;
  // The tensor that forward() returns for `batch`, without running it: its memory and shape depend on the sizes of the
  // batch alone. For a step whose forward() was replayed and not called.
  virtual Tensor hidden_states(const StepBatch& batch) const = 0;
  // Final norm and lm_head of the rows row_ids ([n] i32 on the device, n <= max_num_logits) of hidden_states.
  // Gives [n, vocab_size] f32, gathered over the ranks, on rank 0; an undefined tensor on the others. The row stride
  // exceeds vocab_size when tp.size does not divide it. Valid until the next compute_logits().
  virtual Tensor compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) = 0;
};

class Model : public StepModel {
 public:
  // Allocates weights (unfilled) and workspace. Errors: a config this family cannot run, sizes that do not divide by
  // tp.size (named, with sizes that do), memory.
  static Result<std::unique_ptr<Model>> create(const ModelConfig& config, Device& device, TensorParallel tp,
                                               const ModelOptions& options);
  static Result<ModelMemory> memory(const ModelConfig& config, TensorParallel tp, const ModelOptions& options);
  // Whether a checkpoint fits the config, without a device and without reading weights: all problems at once.
  static Status verify(const ModelConfig& config, const WeightSource& source);
  static Result<ModelOutline> outline(const ModelConfig& config);  // of all layers; Product::weight is null

  // Exactly one of these, once. load() lists all problems of the checkpoint at once.
  virtual Status load(const WeightSource& source, const LoadProgress& progress = {}) = 0;
  virtual Status load_dummy(uint64_t seed, const LoadProgress& progress = {}) = 0;

  virtual ModelOutline outline() const = 0;  // of the layers it has
  virtual const std::vector<KvLayerDesc>& mtp_kv_layers() const = 0;  // of layers for multi-token prediction
  virtual int64_t weight_bytes() const = 0;     // as allocated
  virtual int64_t workspace_bytes() const = 0;  // as allocated

  // The final norm of the rows row_ids ([n] i32 on the device, n <= max_num_logits) of hidden_states: [n, hidden_size]
  // act, contiguous, on every rank. Valid until the next compute_logits().
  virtual Tensor compute_normed(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) = 0;
  // Needs ModelOptions::num_mtp_layers. ctx.kv: a view of each of mtp_kv_layers(). Hidden states of the layer before the norm of its head: rows and lifetime are
  // those of forward(), whose result they may replace.
  virtual Tensor mtp_forward(const StepContext& ctx, const MtpRun& run) = 0;
  // As compute_logits(), with the norm of layer mtp_idx and the model's lm_head.
  virtual Tensor compute_mtp_logits(const StepContext& ctx, int64_t mtp_idx, const Tensor& hidden_states,
                                    const Tensor& row_ids) = 0;

  // Embeddings of the step's token ids -> out [num_tokens, hidden_size] act.
  virtual void embed(const StepContext& ctx, const Tensor& out) = 0;
  // Called in forward() with what each layer takes, [num_tokens, hidden_size] act, all tokens of the step. Puts its
  // work on ctx.stream, where it may be replayed with the pass.
  using InputFollower = std::function<void(const StepContext& ctx, int64_t layer_idx, const Tensor& layer_input)>;
  virtual void set_input_follower(InputFollower follower) = 0;

  // Called after the embedding (layer_idx -1) and after each layer with its output [num_tokens, hidden_size] act, as
  // output_hidden_states gives it. For tests: costs an addition a layer while set.
  using Tap = std::function<void(const StepContext& ctx, int64_t layer_idx, const Tensor& hidden_states)>;
  virtual void set_tap(Tap tap) = 0;
};

// The architectures that create() knows, sorted: "LlamaForCausalLM", ...
std::vector<std::string> supported_architectures();

}  // namespace spate

// Attention: the part of a layer in which tokens read earlier tokens of their sequence, through the paged KV cache.
//
// Implementations: layer/grouped_query_attention.h, layer/multi_head_latent_attention.h. Owned by a model; used by its
// thread.
#pragma once

#include <string>
#include <vector>

#include "layer/arena.h"
#include "layer/product.h"
#include "layer/step_context.h"

namespace spate {

class Attention {
 public:
  virtual ~Attention() = default;

  // What the KV cache of the layer stores of a token, on this rank. Block size and dtype are the model's to choose.
  virtual KvLayerDesc kv_layer() const = 0;
  // Takes the scratch of the largest step. Other parts use the same memory: nothing in it outlives a forward.
  virtual void take_workspace(Arena& arena) = 0;
  // `norm`: the name of the norm that gives x.
  virtual void list_products(const std::string& norm, std::vector<Product>& products) const = 0;
  // The weight of the one product that reads x, the first that runs; null where there are more.
  virtual const PackedWeight* x_reader() const { return nullptr; }

  // x [num_tokens, hidden_size] -> out [num_tokens, hidden_size], summed over the ranks; out may be x. Writes what the
  // cache stores of the step's tokens to `kv` first.
  virtual void forward(const StepContext& ctx, const KvView& kv, const Tensor& x, const Tensor& out) const = 0;
  // The same for the tokens ctx.batch.output_rows alone: out [num_outputs, hidden_size]; may be the first rows of x.
  // All tokens are written to `kv`.
  virtual void forward_output_rows(const StepContext& ctx, const KvView& kv, const Tensor& x,
                                   const Tensor& out) const = 0;

  // forward() in its parts, for a caller that joins the products of layers (backend/layer_products.h). project() is
  // the first product; attend() takes its result to the heads, which the last product reads.
  virtual void project(const StepContext& ctx, const Tensor& x) const = 0;
  virtual void attend(const StepContext& ctx, const KvView& kv) const = 0;
  // This rank computes all of the attention, and one product alone reads x.
  virtual bool is_whole() const = 0;
  // The two products for so many tokens: the first without its x, the last without its out.
  virtual LinearParams first_product(int64_t num_tokens) const = 0;
  virtual LinearParams last_product(int64_t num_tokens) const = 0;
};

}  // namespace spate

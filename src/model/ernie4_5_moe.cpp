// ernie4_5_moe.cpp: ERNIE 4.5 with experts (21B-A3B, 300B-A47B).
//
// Special: ERNIE 4.5's attention (RoPE of neighbouring elements). The first layers are dense. A bias that training
// balanced decides which experts are chosen, not how much they weigh. Shared experts, if there are any, are one MLP of
// their widths together. The router stays f32. The layer for multi-token prediction, made where it is wanted, is dense,
// has names of its own and shares the model's last norm.
//
//   input_ids                     [num_tokens]
//   embed_tokens               -> [num_tokens, hidden_size]
//   num_layers x layer         -> [num_tokens, hidden_size], residual beside it
//   norm, rows to be sampled   -> [num_logits, hidden_size]
//   lm_head                    -> [num_logits, vocab_size]
//
// Tensor parallel: q, k, v, gate, up (of each expert) and the vocabulary by rows of the weight; o, down by columns: two
// all-reduces a layer. The router is on every rank.
//
// Reference: transformers, models/ernie4_5_moe/modeling_ernie4_5_moe.py. Goldens: test/goldens/model/ernie4_5_moe*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {
namespace {

using Rotary = std::shared_ptr<const RotaryEmbedding>;

Result<DecoderLayer> make_layer(const PartFactory& make, const std::string& name, const Rotary& rotary,
                                bool has_experts) {
  DecoderLayer layer;
  layer.name = name;
  ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
  ASSIGN_OR_RETURN(layer.self_attn, make.attention({.name = name + ".self_attn", .rotary = rotary}));
  ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
  if (has_experts) {
    ASSIGN_OR_RETURN(layer.mlp, make.experts({.name = name + ".mlp",
                                              .correction_bias = name + ".mlp.moe_statics.e_score_correction_bias",
                                              .correction_bias_is_row = true,
                                              .shared_name = "shared_experts"}));
  } else {
    ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
  }
  return layer;
}

Result<std::vector<MtpModule>> make_mtp(const PartFactory& make, const Rotary& rotary) {
  const int64_t width = make.config().hidden_size;
  std::vector<MtpModule> modules;
  for (int64_t i = 0; i < make.num_mtp_layers(); ++i) {
    ASSIGN_OR_RETURN(RmsNorm enorm, make.rms_norm(fmt::format("model.mtp_emb_norm.{}", i)));
    ASSIGN_OR_RETURN(RmsNorm hnorm, make.rms_norm(fmt::format("model.mtp_hidden_norm.{}", i)));
    ASSIGN_OR_RETURN(Linear eh_proj, Linear::whole(make.parameters(), fmt::format("model.mtp_linear_proj.{}", i), width,
                                                   2 * width, false));
    ASSIGN_OR_RETURN(DecoderLayer layer, make_layer(make, fmt::format("model.mtp_block.{}", i), rotary, false));
    modules.push_back({.enorm = std::move(enorm),
                       .hnorm = std::move(hnorm),
                       .eh_proj = std::move(eh_proj),
                       .layer = std::move(layer),
                       .norm = std::nullopt});
  }
  // Those that nobody wants; without num_nextn_predict_layers, all.
  if (modules.empty()) make.parameters().ignore("model.mtp_*");
  for (int64_t i = make.num_mtp_layers(); !modules.empty() && i < make.config().num_mtp_layers; ++i) {
    for (const char* part : {"emb_norm", "hidden_norm", "linear_proj", "block"}) {
      make.parameters().ignore(fmt::format("model.mtp_{}.{}.*", part, i));
    }
  }
  return modules;
}

}  // namespace

Result<DecoderParts> make_ernie4_5_moe(const PartFactory& make) {
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const Rotary rotary, make.rotary_embedding(/*interleaved=*/true));
  for (const int64_t i : make.layers()) {
    ASSIGN_OR_RETURN(DecoderLayer layer,
                     make_layer(make, fmt::format("model.layers.{}", i), rotary, make.config().experts.in_layer(i)));
    model.layers.push_back(std::move(layer));
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  ASSIGN_OR_RETURN(model.mtp, make_mtp(make, rotary));
  return model;
}

}  // namespace spate

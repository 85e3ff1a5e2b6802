// deepseek.cpp: DeepSeek-V2, V2-Lite, V3, R1.
//
// Special: latent attention, whose cache holds one short vector a token; RoPE of neighbouring elements, on a part of
// each head; YaRN with mscale. The first layers are dense, the others have experts beside shared ones. V2: softmax, in
// some models from the best groups alone. V3 and R1: sigmoid scores, a bias for the choice, groups by their two best
// experts. The layers behind the last one, for multi-token prediction, are not used yet.
//
//   input_ids                     [num_tokens]
//   embed_tokens               -> [num_tokens, hidden_size]
//   num_layers x layer         -> [num_tokens, hidden_size], residual beside it
//   norm, rows to be sampled   -> [num_logits, hidden_size]
//   lm_head                    -> [num_logits, vocab_size]
//
// Tensor parallel: q (or q_b), kv_b, gate, up (of each expert) and the vocabulary by rows of the weight; o, down by
// columns: two all-reduces a layer. q_a, kv_a, the latent cache and the router are on every rank.
//
// Reference: transformers, models/deepseek_v2 and models/deepseek_v3. Goldens: test/goldens/model/deepseek*.
#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {
namespace {

// experts: of the layer's name.
template <typename MakeExperts>
Result<DecoderParts> make_deepseek(const PartFactory& make, bool interleaved, const MakeExperts& experts) {
  const ModelConfig& config = make.config();
  for (int64_t i = 0; i < config.num_mtp_layers; ++i) {
    make.parameters().ignore(fmt::format("model.layers.{}.*", config.num_layers + i));
  }
  DecoderParts model;
  ASSIGN_OR_RETURN(model.embed_tokens, make.embedding("model.embed_tokens"));
  ASSIGN_OR_RETURN(const auto rotary, make.rotary_embedding(interleaved));
  for (const int64_t i : make.layers()) {
    const std::string name = fmt::format("model.layers.{}", i);
    DecoderLayer& layer = model.layers.emplace_back();
    layer.name = name;
    ASSIGN_OR_RETURN(layer.input_layernorm, make.rms_norm(name + ".input_layernorm"));
    ASSIGN_OR_RETURN(
        layer.self_attn,
        make.latent_attention({.name = name + ".self_attn", .rotary = rotary, .has_bias = config.attention_bias}));
    ASSIGN_OR_RETURN(layer.post_attention_layernorm, make.rms_norm(name + ".post_attention_layernorm"));
    if (config.experts.in_layer(i)) {
      ASSIGN_OR_RETURN(layer.mlp, make.experts(experts(name + ".mlp")));
    } else {
      ASSIGN_OR_RETURN(layer.mlp, make.mlp(name + ".mlp"));
    }
  }
  ASSIGN_OR_RETURN(model.norm, make.rms_norm("model.norm"));
  ASSIGN_OR_RETURN(model.lm_head, make.lm_head("lm_head", model.embed_tokens));
  return model;
}

}  // namespace

Result<DecoderParts> make_deepseek_v2(const PartFactory& make) {
  return make_deepseek(make, /*interleaved=*/true, [](const std::string& name) {
    return MixtureOfExpertsSpec{.name = name, .shared_name = "shared_experts"};
  });
}

Result<DecoderParts> make_deepseek_v3(const PartFactory& make) {
  return make_deepseek(make, make.config().rope_interleave, [](const std::string& name) {
    return MixtureOfExpertsSpec{.name = name,
                                .routing = {.scores = ExpertScores::kSigmoid, .group_scores = GroupScores::kTop2Sum},
                                .correction_bias = name + ".gate.e_score_correction_bias",
                                .shared_name = "shared_experts"};
  });
}

}  // namespace spate

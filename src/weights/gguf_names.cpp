#include "weights/gguf_names.h"

#include <fmt/format.h>

#include <span>

namespace spate {
namespace {

struct NamePair {
  std::string_view gguf, hugging_face;
};
constexpr NamePair kModuleNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};
// Below "model.layers.N."
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},  // GLM-4.5
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    {"nextn.eh_proj", "eh_proj"},
    {"nextn.embed_tokens", "embed_tokens"},
    {"nextn.enorm", "enorm"},
    {"nextn.hnorm", "hnorm"},
    {"nextn.shared_head_head", "shared_head.head"},
    {"nextn.shared_head_norm", "shared_head.norm"},
};
// What an architecture has under a name of its own.
struct OwnName {
  std::string_view architecture, gguf, hugging_face;
};
constexpr OwnName kOwnNames[] = {
    {"llama", "ffn_gate_inp", "block_sparse_moe.gate"},
    {"qwen2moe", "ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"qwen2moe", "ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"qwen2moe", "ffn_down_shexp", "mlp.shared_expert.down_proj"},
};
// W_uk (transposed) and W_uv of each head.
constexpr NamePair kHeadStacks[] = {
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
};

std::optional<std::string_view> look_up(std::span<const NamePair> names, std::string_view gguf) {
  for (const NamePair& pair : names) {
    if (pair.gguf == gguf) return pair.hugging_face;
  }
  return {};
}

std::optional<std::string_view> look_up_own(std::string_view architecture, std::string_view gguf) {
  for (const OwnName& own : kOwnNames) {
    if (own.architecture == architecture && own.gguf == gguf) return own.hugging_face;
  }
  return {};
}

// Names of the matrices of one expert, in "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps" or the first two together.
std::vector<std::string> expert_matrices(std::string_view module, bool is_mixtral) {
  const auto name = [&](std::string_view mixtral, std::string_view others) {
    return is_mixtral ? fmt::format("block_sparse_moe.experts.{{}}.{}", mixtral)
                      : fmt::format("mlp.experts.{{}}.{}", others);
  };
  const std::string gate = name("w1", "gate_proj"), up = name("w3", "up_proj");
  if (module == "ffn_gate_exps") return {gate};
  if (module == "ffn_up_exps") return {up};
  if (module == "ffn_gate_up_exps") return {gate, up};
  if (module == "ffn_down_exps") return {name("w2", "down_proj")};
  return {};
}

// `kind`: ".weight", ".bias".
GgufTensorName layer_tensor(std::string_view module, std::string_view kind, std::string_view architecture) {
  if (module == "exp_probs_b" && kind == ".bias") {
    if (architecture != "ernie4_5-moe") return {.names = {"mlp.gate.e_score_correction_bias"}};
    return {.names = {"mlp.moe_statics.e_score_correction_bias"}, .is_row = true};
  }
  if (kind == ".weight") {
    GgufTensorName stack{.names = expert_matrices(module, architecture == "llama"), .is_stack = true};
    if (const auto head = look_up(kHeadStacks, module)) {
      stack.names = {fmt::format("{}.{{}}", *head)};
      stack.is_of_heads = true;
    }
    for (std::string& name : stack.names) name += kind;
    if (!stack.names.empty()) return stack;
  }
  std::optional<std::string_view> known = look_up_own(architecture, module);
  if (!known) known = look_up(kLayerNames, module);
  if (!known) return {};
  return {.names = {fmt::format("{}{}", *known, kind)}, .is_row = module == "ffn_gate_inp_shexp"};
}

}  // namespace

GgufTensorName hugging_face_name(std::string_view name, std::string_view architecture) {
  const GgufTensorName unknown{.names = {std::string(name)}};
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return unknown;
  const std::string_view kind = name.substr(dot);
  std::string_view module = name.substr(0, dot);
  if (!module.starts_with("blk.")) {
    const auto known = look_up(kModuleNames, module);
    return known ? GgufTensorName{.names = {fmt::format("{}{}", *known, kind)}} : unknown;
  }
  module.remove_prefix(4);
  const size_t after = module.find('.');
  if (after == std::string_view::npos) return unknown;
  GgufTensorName known = layer_tensor(module.substr(after + 1), kind, architecture);
  for (std::string& own : known.names) own = fmt::format("model.layers.{}.{}", module.substr(0, after), own);
  return known.names.empty() ? unknown : known;
}

std::string name_of_matrix(std::string_view pattern, int64_t number) {
  const size_t at = pattern.find("{}");
  return fmt::format("{}{}{}", pattern.substr(0, at), number, pattern.substr(at + 2));
}

}  // namespace spate

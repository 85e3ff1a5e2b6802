#!/usr/bin/env python3
"""Makes test/goldens/model/: tiny random models of every family, and what transformers computes with them.

    python tools/goldens/make_model_goldens.py [NAME ...]

Needs torch, transformers and safetensors; goldens were made with torch 2.13 (CPU) and transformers 5.23. Seeded: the same
versions give the same files. Each folder holds config.json, the weights, and goldens.safetensors:

    mid_layer [1]             index of the middle layer of three
    max_model_len [1]         positions of the test's rope table
    bf16_error [2]            relative L2 distance of transformers in bf16 from transformers in f32: hidden states, logits
    seqN.token_ids [n]        prompt, then decode tokens, as floats
    seqN.prompt_len [1]
    seqN.hidden.embed|first|mid|last [n, hidden_size]   f32: output of the embedding, of the first, the middle and the last
                              layer (no final norm)
    seqN.logit_rows [k], seqN.logits [k, vocab_size]  of some positions

With a layer for multi-token prediction, which guesses the token after the next one:

    seqN.mtp.next_token [1]   the token behind the last one
    seqN.mtp.hidden [n, hidden_size]  output of the layer, before the norm of its head
    seqN.mtp.logits [k, vocab_size]   of the positions logit_rows
    seqN.mtp.chain_logits [1, vocab_size]  of the last position, where the layer's own output of the position before stands for the
                              model's hidden state, as when it drafts a second token
    seqN.mtp.second_token [1], seqN.mtp.second_hidden, seqN.mtp.second_logits  with two layers: the token behind the next one, and
                              what the second layer makes of the first one's output and the tokens two further on

The prompt is run whole, each decode token in a step of its own with transformers' cache. Everything is computed in f32 from
the weights as they are stored.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel
from transformers import (AutoModelForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM, LlamaConfig, LlamaForCausalLM, MinistralConfig,
                          MinistralForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
                          Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config,
                          DeepseekV3ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM)

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "model"
PROMPT_LENS = (5, 18, 33)  # below, across and beyond a KV block of 16
NUM_DECODE = 4

BASE = dict(vocab_size=160, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)


def rope(rope_type="default", theta=10000.0, **more):
    return dict(rope_type=rope_type, rope_theta=theta, **more)


# name -> (model class, config, options: dtype of the stored weights; old_style config.json; num_shards; max_model_len; seqs;
#          changes of config.json; bare: tensors without the prefix "model."; fused: experts as transformers 5 keeps them in
#          memory, one tensor for all of a layer; f32_routers; mtp: layers for multi-token prediction)
MODELS = {
    # The plain decoder, f32 weights.
    "llama_plain": (LlamaForCausalLM, LlamaConfig(**BASE, rope_parameters=rope()), dict(dtype=torch.float32)),
    # Llama 3's RoPE, every bias, tied, f16 weights, a config.json of transformers 4.
    "llama3_bias_tied": (LlamaForCausalLM, LlamaConfig(**BASE | dict(eos_token_id=[2, 3]), tie_word_embeddings=True, attention_bias=True,
        mlp_bias=True, rope_parameters=rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                            original_max_position_embeddings=32)),
        dict(dtype=torch.float16, old_style=True)),
    # Linear scaling; as many kv heads as heads; a vocabulary that 2 does not divide.
    "llama_linear_mha": (LlamaForCausalLM, LlamaConfig(**BASE | dict(vocab_size=161, num_key_value_heads=4),
        rope_parameters=rope("linear", factor=4.0)), dict(old_style=True)),
    # Dynamic NTK beyond the trained length: one sequence of max_model_len, no decode (its frequencies would change).
    "llama_dynamic_long": (LlamaForCausalLM, LlamaConfig(**BASE | dict(max_position_embeddings=32),
        rope_parameters=rope("dynamic", factor=2.0)), dict(max_model_len=60, seqs=[(60, 0)])),
    # Dynamic NTK within the trained length is plain RoPE.
    "llama_dynamic_short": (LlamaForCausalLM, LlamaConfig(**BASE, rope_parameters=rope("dynamic", factor=2.0)), {}),
    # The window opens at layer 1; q, k, v have a bias.
    "qwen2_window": (Qwen2ForCausalLM, Qwen2Config(**BASE, use_sliding_window=True, sliding_window=8, max_window_layers=1,
        rope_parameters=rope(theta=1e6)), {}),
    # YaRN, tied, transformers 4 config.
    "qwen2_yarn_tied": (Qwen2ForCausalLM, Qwen2Config(**BASE, tie_word_embeddings=True, rope_parameters=rope("yarn", 10000.0, factor=4.0,
        original_max_position_embeddings=32)), dict(old_style=True)),
    # head_dim is not hidden_size / heads and not a multiple of 4; tied; two shards.
    "qwen3_tied_sharded": (Qwen3ForCausalLM, Qwen3Config(**BASE, head_dim=18, tie_word_embeddings=True,
        rope_parameters=rope(theta=1e6)), dict(num_shards=2)),
    # One kv head, which two ranks must share; six query heads; window by layer_types; YaRN with its optional keys.
    "qwen3_yarn_one_kv_head": (Qwen3ForCausalLM, Qwen3Config(**BASE | dict(num_attention_heads=6, num_key_value_heads=1), head_dim=16,
        attention_bias=True, use_sliding_window=True, sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        # With theta 100 the correction range is [1, 5] of 8 frequencies; with the default beta_fast it would begin at 0.
        rope_parameters=rope("yarn", 100.0, factor=2.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=1.0,
                             attention_factor=1.1)), {}),
    "mistral_window": (MistralForCausalLM, MistralConfig(**BASE, head_dim=20, sliding_window=8, rope_parameters=rope()),
        dict(old_style=True)),
    "mistral_plain": (MistralForCausalLM, MistralConfig(**BASE, sliding_window=None, rope_parameters=rope(theta=1e6)), {}),
    # layer_types says which layers slide; transformers runs such a Mistral as its class Ministral.
    "mistral_layer_types": (MinistralForCausalLM, MinistralConfig(**BASE, head_dim=20, sliding_window=8,
        layer_types=["full_attention", "sliding_attention", "full_attention"], rope_parameters=rope()),
        dict(changes=dict(model_type="mistral", architectures=["MistralForCausalLM"]))),
    # Tied by its config.json, but with an lm_head of its own; tensors without a prefix; rope_scaling beside rope_parameters.
    "llama_bare_own_lm_head": (LlamaForCausalLM, LlamaConfig(**BASE, rope_parameters=rope("linear", 5e5, factor=4.0)),
        dict(bare=True, changes=dict(tie_word_embeddings=True, architectures=["LlamaModel"], rope_theta=5e5,
                                     rope_scaling=dict(type="linear", factor=4.0), rope_parameters=rope()))),
    "ernie4_5_tied": (Ernie4_5ForCausalLM, Ernie4_5Config(**BASE, head_dim=16, tie_word_embeddings=True,
        rope_parameters=rope(theta=500000.0)), dict(old_style=True)),
    "ernie4_5_bias": (Ernie4_5ForCausalLM, Ernie4_5Config(**BASE, head_dim=20, tie_word_embeddings=False, use_bias=True,
        rope_parameters=rope(theta=500000.0)), {}),
    # Experts with names of their own; widths that 16 does not divide; a config.json of transformers 4.
    "mixtral": (MixtralForCausalLM, MixtralConfig(**BASE | dict(intermediate_size=40), num_local_experts=5, num_experts_per_tok=2,
        rope_parameters=rope(theta=1e6)), dict(old_style=True)),
    # A window; every expert is used; one tensor for all experts of a layer.
    "mixtral_window_fused": (MixtralForCausalLM, MixtralConfig(**BASE | dict(intermediate_size=32), head_dim=20, num_local_experts=3,
        num_experts_per_tok=3, sliding_window=8, rope_parameters=rope()), dict(fused=True)),
    # A shared expert with its gate; the first layer is dense; weights of experts are not divided by their sum.
    "qwen2_moe": (Qwen2MoeForCausalLM, Qwen2MoeConfig(**BASE, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=56, mlp_only_layers=[0], rope_parameters=rope(theta=1e6)), {}),
    # Every second layer has experts; theirs are divided by their sum; no bias of q, k and v; tied.
    "qwen2_moe_sparse_step": (Qwen2MoeForCausalLM, Qwen2MoeConfig(**BASE, num_experts=4, num_experts_per_tok=3, qkv_bias=False,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, decoder_sparse_step=2, norm_topk_prob=True,
        tie_word_embeddings=True, rope_parameters=rope()), dict(old_style=True)),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**BASE, head_dim=16, num_experts=12, num_experts_per_tok=4,
        moe_intermediate_size=16, norm_topk_prob=True, rope_parameters=rope(theta=1e6)), {}),
    # One tensor for all experts of a layer; a window; a dense layer among them; YaRN.
    "qwen3_moe_fused": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**BASE, head_dim=18, num_experts=7, num_experts_per_tok=2,
        moe_intermediate_size=20, mlp_only_layers=[1], attention_bias=True, use_sliding_window=True, sliding_window=9,
        rope_parameters=rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=32)), dict(fused=True)),
    # Two shared experts, a first dense layer, a correction bias that changes the choice.
    "ernie4_5_moe": (Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig(**BASE, head_dim=16, moe_num_experts=8, moe_k=3,
        moe_intermediate_size=24, moe_num_shared_experts=2, rope_parameters=rope(theta=500000.0)), dict(old_style=True, f32_routers=True)),
    # No shared expert; experts in the middle layer alone; untied.
    "ernie4_5_moe_one_layer": (Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig(**BASE, head_dim=20, moe_num_experts=6, moe_k=2,
        moe_intermediate_size=32, moe_num_shared_experts=0, moe_layer_start_index=1, moe_layer_end_index=1,
        tie_word_embeddings=False, rope_parameters=rope(theta=500000.0)), {}),
    # The layer for multi-token prediction of ERNIE 4.5: dense, under names of its own.
    "ernie4_5_moe_mtp": (Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig(**BASE | dict(num_hidden_layers=2), head_dim=16, moe_num_experts=8, moe_k=2,
        moe_intermediate_size=16, moe_num_shared_experts=1, rope_parameters=rope(theta=500000.0)),
        dict(mtp=1, f32_routers=True, changes=dict(num_nextn_predict_layers=1))),
    # V2-Lite: queries are one product; YaRN with mscale; a first dense layer. Rank and widths are no multiples of 16.
    "deepseek_v2_lite": (DeepseekV2ForCausalLM, DeepseekV2Config(**BASE | dict(num_key_value_heads=4), q_lora_rank=None, kv_lora_rank=20,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=14, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
        moe_intermediate_size=16, first_k_dense_replace=1, rope_parameters=rope("yarn", 10000.0, factor=4.0, mscale=0.707,
        mscale_all_dim=0.707, beta_fast=32, beta_slow=1, original_max_position_embeddings=32)), dict(old_style=True)),
    # V2: the best groups alone; weights scaled.
    "deepseek_v2_groups": (DeepseekV2ForCausalLM, DeepseekV2Config(**BASE | dict(num_key_value_heads=4), q_lora_rank=24, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3,
        moe_intermediate_size=24, first_k_dense_replace=0, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=4.0, rope_parameters=rope()), {}),
    # V3: sigmoid, correction bias, groups by two experts; mscale differs from mscale_all_dim.
    "deepseek_v3": (DeepseekV3ForCausalLM, DeepseekV3Config(**BASE | dict(num_key_value_heads=4), q_lora_rank=20, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
        moe_intermediate_size=16, first_k_dense_replace=1, n_group=4, topk_group=2, num_mtp_layers=0,
        rope_parameters=rope("yarn", 10000.0, factor=4.0, mscale=1.0, mscale_all_dim=0.7, beta_fast=32, beta_slow=1,
        original_max_position_embeddings=32)), dict(f32_routers=True)),
    # V3 with its layer for multi-token prediction.
    "deepseek_v3_mtp": (DeepseekV3ForCausalLM, DeepseekV3Config(**BASE | dict(num_key_value_heads=4, num_hidden_layers=2), q_lora_rank=20,
        kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, n_group=2, topk_group=1, num_mtp_layers=1,
        rope_parameters=rope()), dict(mtp=1)),
    # The same with two, which draft one after the other.
    "deepseek_v3_mtp2": (DeepseekV3ForCausalLM, DeepseekV3Config(**BASE | dict(num_key_value_heads=4, num_hidden_layers=2), q_lora_rank=20,
        kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1, n_group=2, topk_group=1, num_mtp_layers=2,
        rope_parameters=rope()), dict(mtp=2)),
    # Half of each head is rotated; q, k and v have a bias; experts as DeepSeek-V3 has them, without groups.
    "glm4_moe": (Glm4MoeForCausalLM, Glm4MoeConfig(**BASE, head_dim=16, attention_bias=True, n_routed_experts=9, n_shared_experts=1,
        num_experts_per_tok=3, moe_intermediate_size=24, first_k_dense_replace=1, routed_scaling_factor=1.5, num_mtp_layers=0,
        rope_parameters=rope(theta=1e6, partial_rotary_factor=0.5)), dict(old_style=True, f32_routers=True)),
    # Norms of q and k, a head of which 10 of 20 elements are rotated, and the layer for multi-token prediction.
    "glm4_moe_mtp": (Glm4MoeForCausalLM, Glm4MoeConfig(**BASE | dict(num_hidden_layers=2), head_dim=20, attention_bias=True, use_qk_norm=True,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
        num_mtp_layers=1, rope_parameters=rope(partial_rotary_factor=0.5)), dict(mtp=1)),
}


def randomise(model, generator):
    """Weights large enough that every part matters: unit-variance projections, norms around 1, real biases."""
    biases = [(name, buffer) for name, buffer in model.named_buffers() if "correction_bias" in name]
    for name, parameter in list(model.named_parameters()) + biases:
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1 + 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.3 * noise
        elif "correction_bias" in name:
            parameter.data = 0.1 * noise
        elif ".mlp.experts." in name:  # [num_experts, out_features, in_features]
            parameter.data = noise / parameter.shape[2] ** 0.5
        elif "mlp.gate" in name:  # routers: weights of a token's experts that differ
            parameter.data = 2 * noise / parameter.shape[1] ** 0.5
        elif "embed_tokens" in name:
            parameter.data = noise * (0.15 if model.config.tie_word_embeddings else 1.0)
        else:
            parameter.data = noise / parameter.shape[1] ** 0.5


def run(model, token_ids, prompt_len, mid_layer):
    """Hidden states of the three places and logits, [n, ...] f32: the prompt whole, then a token a step."""
    taps = {"embed": [], "first": [], "mid": [], "last": []}

    def keep(place):
        return lambda module, args, output: taps[place].append((output[0] if isinstance(output, tuple) else output)[0].float())

    layers = model.model.layers
    hooks = [model.model.embed_tokens.register_forward_hook(keep("embed")),
             layers[0].register_forward_hook(keep("first")), layers[mid_layer].register_forward_hook(keep("mid")),
             layers[-1].register_forward_hook(keep("last"))]
    logits, cache, begin = [], None, 0
    with torch.no_grad():
        for end in [prompt_len] + list(range(prompt_len + 1, len(token_ids) + 1)):
            out = model(input_ids=torch.tensor([token_ids[begin:end]]), past_key_values=cache, use_cache=True)
            logits.append(out.logits[0].float())
            cache, begin = out.past_key_values, end
    for hook in hooks:
        hook.remove()
    return {place: torch.cat(parts) for place, parts in taps.items()} | {"logits": torch.cat(logits)}


class ErnieMtp(torch.nn.Module):
    """ERNIE 4.5's layer for multi-token prediction, which transformers lacks; used as an MtpModel. Written from the checkpoints' names
    and FastDeploy's order of parts: the model's normed hidden state, the embedding first, the model's own norm before the head."""

    NAMES = {"0.emb_norm.": "model.mtp_emb_norm.0.", "0.hidden_norm.": "model.mtp_hidden_norm.0.",
             "0.linear_proj.": "model.mtp_linear_proj.0.", "0.mtp_block.": "model.mtp_block.0."}

    def __init__(self, model):
        super().__init__()
        config, norm = model.config, type(model.model.norm)
        layer = torch.nn.Module()
        layer.emb_norm, layer.hidden_norm = (norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        layer.linear_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer.mtp_block = type(model.model.layers[0])(config, 0)  # layer 0 is dense
        self.layers, self.model, self.config = torch.nn.ModuleList([layer]), [model.model], config

    def stored_name(self, name):
        return next(stored + name.removeprefix(prefix) for prefix, stored in self.NAMES.items() if name.startswith(prefix))

    def forward_layer(self, layer_idx, known, places, cache, input_ids):
        model, layer, n = self.model[0], self.layers[layer_idx], input_ids.shape[1]
        x = layer.linear_proj(torch.cat([layer.emb_norm(model.embed_tokens(input_ids)), layer.hidden_norm(known)], -1))
        mask = torch.full((1, 1, n, n), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        x = layer.mtp_block(x, attention_mask=mask, position_ids=places, position_embeddings=model.rotary_emb(x, places))
        return model.norm(x[0] if isinstance(x, tuple) else x)


def add_ernie_mtp(folder, model, generator):
    mtp = ErnieMtp(model)
    randomise_layers = mtp.layers
    randomise_layers.config = model.config
    randomise(randomise_layers, generator)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {mtp.stored_name(name): value.bfloat16().contiguous() for name, value in mtp.layers.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def mtp_layer_prefix(model, layer_idx):
    return f"model.layers.{model.config.num_hidden_layers + layer_idx}."


def add_mtp(folder, model, num_layers, generator):
    """Random layers for multi-token prediction beside the model in `folder`, under the names that DeepSeek's files have."""
    if model.config.model_type == "ernie4_5_moe":
        return add_ernie_mtp(folder, model, generator)
    layers = MtpModel(model, num_layers).layers
    randomise(layers, generator)
    tensors = load_file(folder / "model.safetensors")
    for name, value in layers.state_dict().items():
        layer_idx, _, name = name.partition(".")
        prefix = mtp_layer_prefix(model, int(layer_idx))
        name, value = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm"), value.bfloat16()
        if ".experts." not in name:
            tensors[prefix + name] = value.contiguous()
            continue
        stem, _, matrix = name.rpartition(".")
        for i, expert in enumerate(value):  # [num_experts, out_features, in_features]
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2)) if matrix == "gate_up_proj" else [(matrix, expert)]
            for part, rows in parts:
                tensors[f"{prefix}{stem}.{i}.{part}.weight"] = rows.contiguous()
    for layer_idx in range(num_layers):
        prefix = mtp_layer_prefix(model, layer_idx)
        tensors[prefix + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[prefix + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def read_mtp(folder, model, num_layers):
    """The layers in `folder` for a model that was read from there."""
    if model.config.model_type == "ernie4_5_moe":
        tensors, mtp = load_file(folder / "model.safetensors"), ErnieMtp(model).eval()
        mtp.layers.load_state_dict({name: tensors[mtp.stored_name(name)] for name in mtp.layers.state_dict()})
        mtp.layers.to(model.dtype)
        mtp.config._attn_implementation = "eager"
        return mtp
    mtp, tensors = MtpModel(model, num_layers).eval(), load_file(folder / "model.safetensors")
    state = {}
    for name, value in mtp.layers.state_dict().items():
        layer_idx, _, part = name.partition(".")
        stored = mtp_layer_prefix(model, int(layer_idx)) + part.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm.")
        stem, _, matrix = stored.rpartition(".")
        if not stem.endswith(".experts"):
            state[name] = tensors[stored]
            continue
        parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
        state[name] = torch.stack([torch.cat([tensors[f"{stem}.{i}.{part}.weight"] for part in parts]) for i in range(len(value))])
    mtp.layers.load_state_dict(state)
    for parameter in mtp.layers.parameters():
        parameter.data = parameter.data.to(model.dtype)
    mtp.config._attn_implementation = mtp.config._experts_implementation = "eager"
    return mtp


def run_mtp(model, mtp, token_ids, n):
    """Of the first n tokens: output of the first layer before its norm, and logits; and the logits of a second token. The same of a
    second layer, as far as there are tokens behind."""
    outputs = []
    hooks = [layer.mtp_block.register_forward_hook(lambda module, args, output: outputs.append(output[0].float()))
             for layer in mtp.layers]
    ids, places = torch.tensor([token_ids]), torch.arange(n)[None]
    num_second = min(n, len(token_ids) - 2)
    with torch.no_grad():
        known = model.model(input_ids=ids[:, :n]).last_hidden_state
        normed = mtp.forward_layer(0, known, places, None, input_ids=ids[:, 1:n + 1])
        results = {"mtp.hidden": outputs[0], "mtp.logits": model.lm_head(normed)[0].float()}
        if len(mtp.layers) > 1 and num_second > 0:
            normed_second = mtp.forward_layer(1, normed[:, :num_second], places[:, :num_second], None,
                                              input_ids=ids[:, 2:num_second + 2])
            results |= {"mtp.second_hidden": outputs[1], "mtp.second_logits": model.lm_head(normed_second)[0].float()}
        if known.shape[1] > 1:
            known[:, -1] = normed[:, -2]
        chained = mtp.forward_layer(0, known, places, None, input_ids=ids[:, 1:n + 1])
        results["mtp.chain_logits"] = model.lm_head(chained[:, -1]).float()
    for hook in hooks:
        hook.remove()
    return results


class Unstable(Exception):
    """A choice of experts that rounding could change."""


def check_routing(module, args, output):
    """Refuses a token whose experts change when what its router reads moves by 2 %: a bf16 run could choose others."""
    generator = torch.Generator().manual_seed(1)
    chosen = output[2].sort(dim=-1).values[-1]
    x = args[0].reshape(-1, args[0].shape[-1])[-1:]
    for _ in range(12):
        moved = x * (1 + 0.02 * torch.randn(x.shape, generator=generator))
        if not torch.equal(module.forward(moved)[2].sort(dim=-1).values[0], chosen):
            raise Unstable


def draw_tokens(model, mtp, count, generator):
    """Random tokens; those whose routing is near a tie are drawn again."""
    vocab_size = model.config.vocab_size
    modules = list(model.named_modules()) + (list(mtp.layers.named_modules()) if mtp else [])
    hooks = [module.register_forward_hook(check_routing) for name, module in modules if name.endswith("mlp.gate")]
    if not hooks:
        return torch.randint(0, vocab_size, (count,), generator=generator).tolist()
    token_ids, cache = [], None
    while len(token_ids) < count:
        token_id = torch.randint(0, vocab_size, (1,), generator=generator).item()
        try:
            with torch.no_grad():
                model(input_ids=torch.tensor([token_ids + [token_id]]))
            if mtp and token_ids:
                run_mtp(model, mtp, token_ids + [token_id], len(token_ids))
            token_ids.append(token_id)
        except Unstable:
            pass
    for hook in hooks:
        hook.remove()
    return token_ids


def relative_l2(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


def old_style(config):
    """rope_parameters and dtype as transformers 4 wrote them."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    parameters = {key: value for key, value in parameters.items() if value is not None}
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")
    return config


def make(name, model_class, config, dtype=torch.bfloat16, num_shards=1, max_model_len=128, seqs=None, **options):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    config.pad_token_id = None
    config.dtype = dtype
    model = model_class(config).eval()
    randomise(model, generator)
    routers = {key: value.clone() for key, value in model.state_dict().items() if ".mlp.gate." in key}
    model = model.to(dtype)
    if options.get("f32_routers"):  # as ERNIE's files have them
        for key, value in routers.items():
            module, _, leaf = key.rpartition(".")
            getattr(model.get_submodule(module), leaf).data = value
    model.save_pretrained(folder, max_shard_size="5GB" if num_shards == 1 else "100KB",
                          save_original_format=not options.get("fused"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert num_shards == len(list(folder.glob("*.safetensors"))), list(folder.iterdir())
    if options.get("mtp"):
        add_mtp(folder, model, options["mtp"], generator)
    stored = json.loads((folder / "config.json").read_text())
    if options.get("old_style"):
        stored = old_style(stored)
    stored |= options.get("changes", {})
    (folder / "config.json").write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    if options.get("bare"):
        tensors = load_file(folder / "model.safetensors")
        save_file({key.removeprefix("model."): value for key, value in tensors.items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})

    mid_layer = config.num_hidden_layers // 2
    goldens, errors = {}, {"hidden": [], "logits": []}
    seqs = seqs or [(prompt_len, NUM_DECODE) for prompt_len in PROMPT_LENS]
    # Read back from the folder, as its config.json says: a cast of the model in memory would also round its RoPE frequencies.
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=run_dtype, attn_implementation="eager",
                                                   experts_implementation="eager").eval()
              for run_dtype in (torch.float32, torch.bfloat16)]
    num_mtp_layers = options.get("mtp", 0)
    mtps = [read_mtp(folder, read_back, num_mtp_layers) if num_mtp_layers else None for read_back in models]
    drawn = [draw_tokens(models[0], mtps[0], prompt_len + num_decode + num_mtp_layers, generator) for prompt_len, num_decode in seqs]
    all_token_ids = [ids[:len(ids) - num_mtp_layers] for ids in drawn]
    exact, rounded = [[run(read_back, ids, seq[0], mid_layer) | (run_mtp(read_back, mtp, more_ids, len(ids)) if mtp else {})
                       for ids, more_ids, seq in zip(all_token_ids, drawn, seqs)] for read_back, mtp in zip(models, mtps)]
    for i, ((prompt_len, _), token_ids) in enumerate(zip(seqs, all_token_ids)):
        errors["hidden"] += [relative_l2(rounded[i][place], exact[i][place]) for place in ("first", "mid", "last")]
        errors["logits"].append(relative_l2(rounded[i]["logits"], exact[i]["logits"]))
        rows = sorted({0, prompt_len // 2, prompt_len - 1} | set(range(prompt_len, len(token_ids))))
        goldens |= {
            f"seq{i}.token_ids": torch.tensor(token_ids, dtype=torch.float32),
            f"seq{i}.prompt_len": torch.tensor([float(prompt_len)]),
            f"seq{i}.logit_rows": torch.tensor(rows, dtype=torch.float32),
            f"seq{i}.logits": exact[i]["logits"][rows].contiguous(),
        } | {f"seq{i}.hidden.{place}": exact[i][place].contiguous() for place in ("embed", "first", "mid", "last")}
        if mtps[0]:
            errors["hidden"].append(relative_l2(rounded[i]["mtp.hidden"], exact[i]["mtp.hidden"]))
            errors["logits"] += [relative_l2(rounded[i][key], exact[i][key]) for key in ("mtp.logits", "mtp.chain_logits")]
            goldens |= {
                f"seq{i}.mtp.next_token": torch.tensor([float(drawn[i][-num_mtp_layers])]),
                f"seq{i}.mtp.hidden": exact[i]["mtp.hidden"].contiguous(),
                f"seq{i}.mtp.logits": exact[i]["mtp.logits"][rows].contiguous(),
                f"seq{i}.mtp.chain_logits": exact[i]["mtp.chain_logits"].contiguous(),
            }
        if num_mtp_layers > 1:
            errors["hidden"].append(relative_l2(rounded[i]["mtp.second_hidden"], exact[i]["mtp.second_hidden"]))
            errors["logits"].append(relative_l2(rounded[i]["mtp.second_logits"], exact[i]["mtp.second_logits"]))
            goldens |= {
                f"seq{i}.mtp.second_token": torch.tensor([float(drawn[i][-1])]),
                f"seq{i}.mtp.second_hidden": exact[i]["mtp.second_hidden"].contiguous(),
                f"seq{i}.mtp.second_logits": exact[i]["mtp.second_logits"][rows].contiguous(),
            }
    goldens["mid_layer"] = torch.tensor([float(mid_layer)])
    goldens["max_model_len"] = torch.tensor([float(max_model_len)])
    goldens["bf16_error"] = torch.tensor([max(errors["hidden"]), max(errors["logits"])])
    save_file(goldens, folder / "goldens.safetensors")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, bf16 error {errors['hidden'][-1]:.4f} hidden, {max(errors['logits']):.4f} logits")


if __name__ == "__main__":
    for model_name, (model_class, config, options) in MODELS.items():
        if len(sys.argv) == 1 or model_name in sys.argv[1:]:
            make(model_name, model_class, config, **options)

#!/usr/bin/env python3
"""Tiny quantised checkpoints in the layouts of other tools, and what transformers computes with their dequantised weights.

    python tools/goldens/make_quantized_goldens.py [names...]     writes test/goldens/quantized/<name>/,
                                                                 test/goldens/gguf/blocks.safetensors
                                                                 and test/goldens/fp8/codes.safetensors

Needs torch, transformers, safetensors, gguf. A folder is a model folder as AutoGPTQ / GPTQModel, AutoAWQ or llm-compressor
(compressed-tensors) writes it, or holds a GGUF file or the parts of one, written by llama.cpp's `gguf` package; beside it goldens.safetensors as
make_model_goldens.py makes it (a model that was given the dequantised weights runs in f32), and

    tolerance [2]          relative L2 of hidden states and logits: with the codes read as floats; with 8-bit activations
    rows_tolerance [1]     of a dequantised weight, relative to the largest of its row; 0: to the bit
    rows.<tensor> [2, in]  the second and the last row, dequantised as the other tool does it

Checkpoints of 8-bit floats (fp8_*) have the tensors of the model's own checkpoint, experts one by one; the model that runs has
their bf16 values. The codes are packed here from the public descriptions of the layouts; nearest rounding is enough to fill them.
"""

import json
import shutil
import sys
import tempfile

import gguf
import numpy as np
import torch
from make_model_goldens import BASE, OUT, draw_tokens, randomise, rope, run
from safetensors.torch import load_file, save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM,
                          Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig, LlamaForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

OUT = OUT.parent / "quantized"
SMALL = BASE | dict(vocab_size=48, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)

EXACT, F16_SCALES, REQUANTISED = 0.0, 2.0 ** -10, 0.6 / 127  # rows_tolerance
# With 8-bit activations: a product's inputs are off by 0.6 % (a step of max / 127, uniform, max about 2.5 standard deviations in
# a group); five products lie behind each other in one layer and the head. Twice that.
INT8_ACTIVATIONS = 0.03


# --- codes ------------------------------------------------------------------------------------------------------------

def group_of_columns(in_features, group_size):
    return torch.arange(in_features) // (group_size if group_size > 0 else in_features)


def quantise(weight, bits, symmetric, group_ids, scale_dtype=torch.float16):
    """weight [out, in] -> codes [out, in] in [0, 2^bits), zeros and scales [out, groups], the dequantised weight."""
    codes, restored = torch.zeros_like(weight, dtype=torch.int32), torch.zeros_like(weight)
    scales, zeros = [], []
    top = 2 ** bits - 1
    for group in range(int(group_ids.max()) + 1):
        columns = group_ids == group
        part = weight[:, columns]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            scale = torch.maximum(-low, high) / (top // 2)
            zero = torch.full_like(scale, 2 ** (bits - 1))
        else:
            scale = (high - low) / top
            zero = (-low / scale).round().clamp(0, top)
        scale = scale.to(scale_dtype).float()
        q = ((part / scale[:, None]).round() + zero[:, None]).clamp(0, top)
        codes[:, columns] = q.int()
        restored[:, columns] = scale[:, None] * (q - zero[:, None])
        scales.append(scale)
        zeros.append(zero.int())
    return codes, torch.stack(zeros, 1), torch.stack(scales, 1), restored


def pack(values, bits, dim, order=None):
    """Codes along `dim`, 32 / bits to an i32; code order[j] of each run goes to bits j * bits."""
    per_word = 32 // bits
    values = values.movedim(dim, -1).long()
    padding = -values.shape[-1] % per_word
    values = torch.nn.functional.pad(values, (0, padding)).unflatten(-1, (-1, per_word))
    words = sum(values[..., (order or range(per_word))[j]] << (j * bits) for j in range(per_word))
    words = torch.where(words >= 2 ** 31, words - 2 ** 32, words)
    return words.int().movedim(-1, dim).contiguous()


def gptq(name, weight, bits=4, group_size=32, symmetric=True, version=1, desc_act=False, zero_bias=False):
    out_features, in_features = weight.shape
    group_ids = group_of_columns(in_features, group_size)
    if desc_act:
        permutation = torch.randperm(in_features, generator=torch.Generator().manual_seed(in_features))
        group_ids = group_ids[permutation.argsort()]
    codes, zeros, scales, restored = quantise(weight, bits, symmetric, group_ids)
    stored_zeros = (zeros - 1) % 2 ** bits if version == 1 else zeros
    tensors = {"qweight": pack(codes.T, bits, 0), "qzeros": pack(stored_zeros.T, bits, 1),
               "scales": scales.T.half().contiguous(), "g_idx": group_ids.int()}
    if zero_bias:
        tensors["bias"] = torch.zeros(out_features, dtype=torch.float16)
    return {f"{name}.{key}": value for key, value in tensors.items()}, restored


def gptq_config(bits=4, group_size=32, symmetric=True, version=1, desc_act=False, **_):
    return dict(quant_method="gptq", bits=bits, group_size=group_size, sym=symmetric, desc_act=desc_act, damp_percent=0.1,
                checkpoint_format="gptq" if version == 1 else "gptq_v2")


def awq(name, weight, group_size=32):
    codes, zeros, scales, restored = quantise(weight, 4, False, group_of_columns(weight.shape[1], group_size))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {"qweight": pack(codes.T, 4, 1, order), "qzeros": pack(zeros.T, 4, 1, order), "scales": scales.T.half().contiguous()}
    return {f"{name}.{key}": value for key, value in tensors.items()}, restored


def awq_config(group_size=32):
    return dict(quant_method="awq", bits=4, group_size=group_size, zero_point=True, version="gemm", modules_to_not_convert=["lm_head"])


def compressed(name, weight, bits=4, group_size=32, symmetric=True, packed=True, ignore=()):
    codes, zeros, scales, restored = quantise(weight, bits, symmetric, group_of_columns(weight.shape[1], group_size), torch.bfloat16)
    if packed:
        tensors = {"weight_packed": pack(codes, bits, 1), "weight_shape": torch.tensor(weight.shape, dtype=torch.int64)}
        if not symmetric:
            tensors["weight_zero_point"] = pack(zeros, bits, 0)
    else:
        tensors = {"weight": (codes - 2 ** (bits - 1)).to(torch.int8)}
        if not symmetric:
            tensors["weight_zero_point"] = (zeros - 2 ** (bits - 1)).to(torch.int8)
    tensors["weight_scale"] = scales.bfloat16()
    return {f"{name}.{key}": value for key, value in tensors.items()}, restored


def compressed_config(bits=4, group_size=32, symmetric=True, packed=True, ignore=()):
    weights = dict(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group_size > 0 else "channel",
                   group_size=group_size if group_size > 0 else None, dynamic=False, observer="minmax")
    inputs = None if packed else dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    return dict(quant_method="compressed-tensors", format="pack-quantized" if packed else "int-quantized", ignore=["lm_head", *ignore],
                quantization_status="compressed", kv_cache_scheme=None,
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=inputs, output_activations=None)))


# --- safetensors ------------------------------------------------------------------------------------------------------

def write_safetensors(folder, model, method, method_config, options):
    """Every linear layer but lm_head and routers becomes codes, each expert by itself; the model gets the dequantised weights."""
    tensors, restored, checked = {}, {}, {}
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    for name, value in as_in_file(model, False).items():
        is_linear = name.removesuffix(".weight") in linear and name.endswith(".weight") and not name.endswith("shared_expert_gate.weight")
        if not is_linear and value.dim() < 3:
            tensors[name] = value.half()
            restored[name] = tensors[name].float()
            continue
        parts = {}
        for part, matrix in matrices_of(name, value, "llama" if model.config.model_type == "mixtral" else "").items():
            # Zero points at both ends of their range.
            matrix[1] = matrix[1].abs() + 0.1 / matrix.shape[1] ** 0.5
            matrix[2] = -matrix[1]
            codes, parts[part] = method(part.removesuffix(".weight"), matrix, **options)
            tensors |= codes
        restored[name] = torch.stack(list(parts.values())) if value.dim() > 2 else parts[name]
        checked |= parts
    if model.config.model_type == "mixtral":
        tensors = {name.replace(".mlp.gate.", ".block_sparse_moe.gate."): value for name, value in tensors.items()}
    tensors = {name.replace(".gate.moe_statics.", ".moe_statics."): value for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.load_state_dict(as_in_model(restored), strict=False)
    config = json.loads(model.config.to_json_string())
    config["quantization_config"] = method_config(**options)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return checked


# --- 8-bit floats -----------------------------------------------------------------------------------------------------

def fp8(name, weight, block=None, rows=False, suffix="scale_inv", scale_dtype=torch.float32, input_scale=False):
    """A scale a block, the last ones shorter; or a row; or the tensor."""
    out_features, in_features = weight.shape
    block_rows, block_columns = block or (1 if rows else out_features, in_features)
    scales = torch.zeros(-(-out_features // block_rows), -(-in_features // block_columns))
    codes, restored = torch.zeros_like(weight, dtype=torch.float8_e4m3fn), torch.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = slice(i * block_rows, (i + 1) * block_rows), slice(j * block_columns, (j + 1) * block_columns)
            scale = (weight[at].abs().max() / 448).to(scale_dtype).float()
            scales[i, j] = scale
            codes[at] = (weight[at] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            restored[at] = (codes[at].float() * scale).bfloat16().float()
    scales = scales.to(scale_dtype)
    tensors = {"weight": codes, f"weight_{suffix}": scales if block or rows else scales.reshape(())}
    if input_scale:
        tensors["input_scale"] = torch.tensor(0.01)
    return {f"{name}.{key}": value for key, value in tensors.items()}, restored


def fp8_config(block=None, input_scale=False, **_):
    config = dict(quant_method="fp8", fmt="e4m3", activation_scheme="static" if input_scale else "dynamic")
    return config | (dict(weight_block_size=list(block)) if block else {})


def compressed_fp8_config(rows=False, **_):
    weights = dict(num_bits=8, type="float", symmetric=True, strategy="channel" if rows else "tensor", dynamic=False)
    inputs = dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True)
    return dict(quant_method="compressed-tensors", format="float-quantized", ignore=["lm_head"], quantization_status="compressed",
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=inputs, output_activations=None)))


def mixed(name, weight):
    """Attention in 8-bit floats, the rest in 4-bit integers."""
    return fp8(name, weight, rows=True, suffix="scale", scale_dtype=torch.bfloat16) if "attn" in name else compressed(name, weight)


def mixed_config():
    config, attention = compressed_config(), compressed_fp8_config(rows=True)["config_groups"]["group_0"]
    config["config_groups"]["group_1"] = attention | dict(targets=["re:.*self_attn.*"], format="float-quantized")
    return config | dict(format="mixed-precision")


def write_fp8(folder, model, method_config, options):
    """Every matrix of the layers but a router. Experts are one tensor each, as in the files of others."""
    with tempfile.TemporaryDirectory() as source:
        model.save_pretrained(source)
        original = load_file(source + "/model.safetensors")
        tensors, restored = {}, {}
        for name, value in original.items():
            if name.endswith("_proj.weight") or name.endswith("_proj_with_mqa.weight"):
                codes, restored[name] = fp8(name.removesuffix(".weight"), value, **options)
                tensors |= codes
            else:
                tensors[name] = value.bfloat16()
                restored[name] = tensors[name].float()
        save_file(restored, source + "/model.safetensors", metadata={"format": "pt"})
        exact = type(model).from_pretrained(source, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    model.load_state_dict(exact.state_dict())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads(model.config.to_json_string())
    config["quantization_config"] = method_config(**options)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return {name: restored[name] for name in restored if name in tensors and tensors[name].dtype == torch.float8_e4m3fn}


def make_fp8_codes():
    """All 256 codes: test/goldens/fp8/codes.safetensors."""
    (OUT.parent / "fp8").mkdir(exist_ok=True)
    values = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
    save_file({"values": values}, OUT.parent / "fp8" / "codes.safetensors")


# --- GGUF -------------------------------------------------------------------------------------------------------------

T = gguf.GGMLQuantizationType
GGUF_NAMES = {"embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "input_layernorm": "attn_norm",
              "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
              "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "gate_proj": "ffn_gate",
              "up_proj": "ffn_up", "down_proj": "ffn_down", "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm",
              "q_b_proj": "attn_q_b", "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm",
              "kv_b_proj": "attn_kv_b", "k_b_proj": "attn_k_b", "v_b_proj": "attn_v_b", "gate": "ffn_gate_inp",
              "shared_expert_gate": "ffn_gate_inp_shexp"}


def gguf_name(name, arch):
    parts = name.split(".")
    kind, below = parts[-1], parts[-3] if len(parts) > 2 else ""
    if kind == "e_score_correction_bias":
        return f"blk.{parts[2]}.exp_probs_b.bias"
    module = GGUF_NAMES.get(".".join(parts[:-1]), GGUF_NAMES.get(parts[-2]))
    if arch == "glm4moe" and module == "ffn_norm":
        module = "post_attention_norm"
    module += {"experts": "_exps", "shared_experts": "_shexp", "shared_expert": "_shexp"}.get(below, "")
    return f"blk.{parts[2]}.{module}.{kind}" if "layers" in parts else f"{module}.{kind}"


def split_kv_b(weight, config):
    """kv_b_proj as newer files have it: W_uk of each head, transposed, and W_uv."""
    nope, value = config.qk_nope_head_dim, config.v_head_dim
    by_head = weight.reshape(config.num_attention_heads, nope + value, -1)
    return by_head[:, :nope].transpose(1, 2).contiguous(), by_head[:, nope:].contiguous()


def join_kv_b(k, v):
    return torch.cat([k.transpose(1, 2), v], 1).flatten(0, 1)


def as_in_file(model, split_kv):
    """The tensors of a model, experts as three of [num_experts, out, in] a layer."""
    tensors = {}
    for name, value in model.state_dict().items():
        if name.endswith(".experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            tensors[stem + "gate_proj.weight"], tensors[stem + "up_proj.weight"] = value.chunk(2, 1)
        elif name.endswith(".experts.down_proj"):
            tensors[name + ".weight"] = value
        elif name.endswith(".kv_b_proj.weight") and split_kv:
            stem = name.removesuffix("kv_b_proj.weight")
            tensors[stem + "k_b_proj.weight"], tensors[stem + "v_b_proj.weight"] = split_kv_b(value, model.config)
        elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            tensors[name] = value
    return tensors


def as_in_model(tensors):
    state = {}
    for name, value in tensors.items():
        if ".experts." in name and name.endswith("gate_proj.weight"):
            up = tensors[name.replace("gate_proj", "up_proj")]
            state[name.replace("gate_proj.weight", "gate_up_proj")] = torch.cat([value, up], 1)
        elif ".experts." in name:
            if "down_proj" in name:
                state[name.removesuffix(".weight")] = value
        elif name.endswith("k_b_proj.weight"):
            state[name.replace("k_b_proj", "kv_b_proj")] = join_kv_b(value, tensors[name.replace("k_b_proj", "v_b_proj")])
        elif not name.endswith(".v_b_proj.weight"):
            state[name] = value
    return state


def matrices_of(name, value, arch):
    """What Hugging Face calls the tensor, or the matrices in it."""
    if value.dim() < 3:
        return {name: value}
    mixtral = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    stem, matrix, _ = name.rsplit(".", 2)
    if matrix in ("k_b_proj", "v_b_proj"):
        return {f"{stem}.{matrix}.{i}.weight": part for i, part in enumerate(value)}
    if arch == "llama":
        stem, matrix = stem.replace("mlp", "block_sparse_moe"), mixtral[matrix]
    return {f"{stem}.{i}.{matrix}.weight": part for i, part in enumerate(value)}


def permute(weight, num_heads):
    """Rows of a head: (half, pair) -> (pair, half), as llama.cpp keeps q and k of Llama."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


# Types that the package only reads: where d is, and the largest magnitude that a weight is a multiple of d.
RANDOM = {T.Q2_K: (80, 15 * 3), T.Q3_K: (108, 32 * 4), T.Q4_K: (0, 63 * 15), T.Q5_K: (0, 63 * 31), T.Q6_K: (208, 127 * 32), T.IQ4_NL: (0, 127),
          T.IQ4_XS: (0, 32 * 127)}


def random_blocks(shape, type_, generator):
    """Blocks of random bits with scales that give weights of about 1 / sqrt(in)."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[type_]
    blocks = generator.integers(0, 256, (np.prod(shape) // block_size, type_size), dtype=np.uint8)
    d_at, largest = RANDOM[type_]
    d = (generator.uniform(0.5, 1.5, len(blocks)) * 3 / shape[-1] ** 0.5 / largest).astype(np.float16)
    blocks[:, d_at:d_at + 2] = d[:, None].view(np.uint8)
    if type_ in (T.Q2_K, T.Q4_K, T.Q5_K):  # the minimum of a group about half of its range
        half = (d.astype(np.float32) * {T.Q2_K: 1.5, T.Q4_K: 7.5, T.Q5_K: 15.5}[type_]).astype(np.float16)
        blocks[:, d_at + 2:d_at + 4] = half[:, None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def add_experts(writer, config, arch):
    def get(*names, default=None):
        return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), default)

    writer.add_expert_count(get("num_local_experts", "moe_num_experts", "n_routed_experts", "num_experts"))
    writer.add_expert_used_count(get("num_experts_per_tok", "moe_k"))
    if arch == "llama":
        return
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if arch == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if arch == "ernie4_5-moe":
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size // config.num_key_value_heads)  # as the converter does
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    if arch in ("deepseek2", "glm4moe"):
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        if config.norm_topk_prob:
            writer.add_expert_weights_norm(True)
        is_sigmoid = config.model_type != "deepseek_v2"
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
        if config.n_group is not None and config.n_group > 1:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)


def add_latent(writer, config, split_kv):
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    width = config.qk_nope_head_dim + config.qk_rope_head_dim
    if split_kv:
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(width)
        writer.add_value_length_mla(config.v_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(width)
        writer.add_value_length(config.v_head_dim)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if (mscale := config.rope_parameters.get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)


def write_gguf(folder, model, arch, types, tensors_per_file=0, split_kv=True):
    config = model.config
    writer = gguf.GGUFWriter(folder / "model.gguf", arch, split_max_tensors=tensors_per_file)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = config.rope_parameters
    if arch == "deepseek2":
        add_latent(writer, config, split_kv)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(int(head_dim * parameters.get("partial_rotary_factor", 1)))
    if arch in ("qwen2moe", "qwen3moe", "ernie4_5-moe", "deepseek2", "glm4moe") or config.model_type == "mixtral":
        add_experts(writer, config, arch)
    writer.add_rope_freq_base(parameters["rope_theta"])
    if parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
    if parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(parameters["factor"])
    if parameters["rope_type"] == "llama3":
        plain = 1.0 / parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32))
    if arch == "llama":
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_uint32("general.sampling.top_k", 20)
    add_vocabulary(writer, config.vocab_size)

    restored, checked = {}, {}
    generator = np.random.default_rng(5)
    for name, value in as_in_file(model, split_kv).items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        permuted = arch == "llama" and heads is not None
        if permuted:
            value = permute(value, heads)
        is_float = value.dim() < 2 or name.endswith((".gate.weight", "shared_expert_gate.weight", "e_score_correction_bias"))
        type_ = T.F32 if is_float else next(type_ for key, type_ in types.items() if key in name)
        if type_ in RANDOM:
            data = random_blocks(value.shape, type_, generator)
        else:
            data = gguf.quants.quantize(value.float().numpy(), type_)
        in_file = data.squeeze(0) if is_float and data.ndim == 2 and data.shape[0] == 1 else data
        writer.add_tensor(gguf_name(name, arch), in_file, raw_dtype=type_)
        weight = torch.from_numpy(gguf.quants.dequantize(data, type_).copy()).reshape(value.shape)
        if permuted:
            weight = weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)
        restored[name] = weight
        if value.dim() > 1 and not is_float:
            checked |= matrices_of(name, weight, arch)
    model.load_state_dict(as_in_model(restored), strict=False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return checked


def add_vocabulary(writer, vocab_size):
    """Byte-level, far too small to be of use, with a chat template and two tokens that end an answer."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["Ġ", "Ċ", ":", "ab"]
    tokens = letters + [f"<|unused{i}|>" for i in range(vocab_size - len(letters) - 2)] + ["<|im_end|>", "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([normal if token in letters else control for token in tokens])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocab_size - 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")


# --- the models -------------------------------------------------------------------------------------------------------

LLAMA = lambda **more: (LlamaForCausalLM, LlamaConfig(**SMALL | more))
QWEN3 = lambda **more: (Qwen3ForCausalLM, Qwen3Config(**SMALL | dict(head_dim=16, tie_word_embeddings=True) | more))
QWEN2 = lambda **more: (Qwen2ForCausalLM, Qwen2Config(**SMALL | more))
ERNIE = lambda **more: (Ernie4_5ForCausalLM, Ernie4_5Config(**SMALL | dict(head_dim=16, tie_word_embeddings=True) | more))
# Widths that 128 does not divide: the last blocks are shorter. kv_b_proj has 144 rows, so that a block ends within a head.
FP8_SIZES = dict(hidden_size=160, intermediate_size=136)
QWEN3_MOE = lambda **more: (Qwen3MoeForCausalLM, Qwen3MoeConfig(**SMALL | dict(head_dim=16) | more))
DEEPSEEK = lambda **more: (DeepseekV3ForCausalLM, DeepseekV3Config(**SMALL | dict(num_key_value_heads=4) | more))
DEEPSEEK_V2 = lambda **more: (DeepseekV2ForCausalLM, DeepseekV2Config(**SMALL | dict(num_key_value_heads=4) | more))
MIXTRAL = lambda **more: (MixtralForCausalLM, MixtralConfig(**SMALL | more))
QWEN2_MOE = lambda **more: (Qwen2MoeForCausalLM, Qwen2MoeConfig(**SMALL | more))
ERNIE_MOE = lambda **more: (Ernie4_5_MoeForCausalLM, Ernie4_5_MoeConfig(**SMALL | dict(head_dim=16) | more))
GLM = lambda **more: (Glm4MoeForCausalLM, Glm4MoeConfig(**SMALL | dict(head_dim=16) | more))
WIDE = dict(hidden_size=256, intermediate_size=32, head_dim=16, num_attention_heads=2, num_key_value_heads=1)
LEGACY = {"q_proj": T.Q4_0, "k_proj": T.Q4_1, "v_proj": T.Q5_0, "o_proj": T.Q5_1, "gate_proj": T.Q8_0, "up_proj": T.F16,
          "down_proj": T.BF16, "embed": T.Q8_0, "lm_head": T.F32}

# name -> (model, writer of the folder, rows_tolerance)
MODELS = {
    "gptq_int4_g32": (LLAMA(), (gptq, gptq_config, dict(zero_bias=True)), EXACT),
    "gptq_int4_g64_asym": (QWEN2(), (gptq, gptq_config, dict(group_size=64, symmetric=False)), F16_SCALES),
    "gptq_v2_int4_asym": (QWEN3(), (gptq, gptq_config, dict(symmetric=False, version=2)), F16_SCALES),
    "gptq_int4_act_order": (LLAMA(), (gptq, gptq_config, dict(symmetric=False, desc_act=True)), REQUANTISED),
    "gptq_int8_rows": (QWEN3(), (gptq, gptq_config, dict(bits=8, group_size=-1)), EXACT),
    "awq_int4_g64": (QWEN2(), (awq, awq_config, dict(group_size=64)), F16_SCALES),
    "compressed_int4_g32": (QWEN3(), (compressed, compressed_config, dict()), EXACT),
    "compressed_int4_g64_asym": (LLAMA(), (compressed, compressed_config, dict(group_size=64, symmetric=False)), F16_SCALES),
    "compressed_int8_packed_rows": (QWEN3(), (compressed, compressed_config, dict(bits=8, group_size=-1)), EXACT),
    "compressed_w8a8": (QWEN2(), (compressed, compressed_config, dict(bits=8, group_size=-1, packed=False)), EXACT),
    "compressed_mixed_g32": (QWEN3(), (mixed, mixed_config, dict()), EXACT),
    "compressed_fp8_rows": (QWEN2(), (write_fp8, compressed_fp8_config, dict(rows=True, suffix="scale", scale_dtype=torch.bfloat16)), EXACT),
    # A tensor for each matrix of an expert; routers stay floats.
    "gptq_int4_qwen3_moe_g32": (QWEN3_MOE(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True),
                                (gptq, gptq_config, dict()), EXACT),
    "gptq_int8_rows_ernie4_5_moe": (ERNIE_MOE(num_hidden_layers=2, moe_num_experts=4, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=2,
                                              moe_layer_start_index=1), (gptq, gptq_config, dict(bits=8, group_size=-1)), EXACT),
    # kv_b_proj as codes, from which each head takes its part.
    "awq_int4_deepseek_v3": (DEEPSEEK(num_hidden_layers=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
                                      n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32,
                                      first_k_dense_replace=1, n_group=2, topk_group=1, num_mtp_layers=0, rope_parameters=rope()),
                             (awq, awq_config, dict()), F16_SCALES),
    "compressed_int4_mixtral_g32": (MIXTRAL(num_local_experts=4, num_experts_per_tok=2),
                                    (compressed, compressed_config, dict(ignore=("re:.*block_sparse_moe.gate$",))), EXACT),
    "compressed_w8a8_qwen2_moe": (QWEN2_MOE(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=48),
                                  (compressed, compressed_config, dict(bits=8, group_size=-1, packed=False,
                                                                       ignore=("re:.*mlp.gate$", "re:.*shared_expert_gate$"))), EXACT),
    "fp8_tensor": (LLAMA(), (write_fp8, fp8_config, dict(suffix="scale", input_scale=True)), EXACT),
    "fp8_block_qwen3": (QWEN3(**FP8_SIZES), (write_fp8, fp8_config, dict(block=(128, 128), scale_dtype=torch.bfloat16)), EXACT),
    "fp8_block_qwen3_moe": (QWEN3_MOE(hidden_size=144, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True),
                            (write_fp8, fp8_config, dict(block=(128, 32))), EXACT),
    "fp8_block_deepseek_v3": (DEEPSEEK(hidden_size=144, num_hidden_layers=2, q_lora_rank=20, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                                       v_head_dim=20, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
                                       moe_intermediate_size=16, first_k_dense_replace=1, n_group=2, topk_group=1, num_mtp_layers=0,
                                       rope_parameters=rope()), (write_fp8, fp8_config, dict(block=(128, 128))), EXACT),
    "gguf_llama3": (LLAMA(rope_parameters=rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                               original_max_position_embeddings=32)), ("llama", LEGACY), F16_SCALES),
    "gguf_qwen2_yarn": (QWEN2(rope_parameters=rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=32)),
                        ("qwen2", {"": T.Q4_0}), EXACT),
    "gguf_qwen3_k": (QWEN3(**WIDE), ("qwen3", {"q_proj": T.Q4_K, "k_proj": T.Q5_K, "v_proj": T.Q6_K, "o_proj": T.Q8_0,
                                               "gate_proj": T.Q4_K, "up_proj": T.Q4_K, "down_proj": T.Q4_0, "embed": T.Q6_K}),
                     REQUANTISED),
    # As Q2_K, Q3_K and smaller files mix types; down_proj and o_proj are too narrow for blocks of 256.
    "gguf_qwen3_low": (QWEN3(**WIDE), ("qwen3", {"q_proj": T.Q2_K, "k_proj": T.Q3_K, "v_proj": T.IQ4_XS, "o_proj": T.IQ4_NL, "gate_proj": T.TQ1_0,
                                                 "up_proj": T.TQ2_0, "down_proj": T.MXFP4, "embed": T.Q3_K}), REQUANTISED),
    "gguf_qwen3moe_mxfp4_g32": (QWEN3_MOE(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True),
                                ("qwen3moe", {"experts.down": T.IQ4_NL, "experts": T.MXFP4, "": T.Q8_0}), EXACT),
    "gguf_ernie4_5": (ERNIE(rope_parameters=rope("linear", 500000.0, factor=2.0)), ("ernie4_5", {"": T.Q8_0}, 5), EXACT),
    "gguf_mixtral_g32": (MIXTRAL(num_local_experts=3, num_experts_per_tok=2), ("llama", {"": T.Q4_0}), EXACT),
    "gguf_qwen2moe": (QWEN2_MOE(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=96),
                      ("qwen2moe", {"experts.down": T.Q5_1, "": T.Q4_1}), F16_SCALES),
    "gguf_qwen3moe_g32": (QWEN3_MOE(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True,
                                    rope_parameters=rope("yarn", 10000.0, factor=4.0, original_max_position_embeddings=32)),
                          ("qwen3moe", {"experts.up": T.BF16, "experts.down": T.Q8_0, "": T.Q4_0}), EXACT),
    "gguf_ernie4_5_moe": (ERNIE_MOE(num_hidden_layers=2, moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=2,
                                    moe_layer_start_index=1), ("ernie4_5-moe", {"": T.Q8_0}), EXACT),
    # V2-Lite with W_uk and W_uv in one tensor, as files before April 2025; YaRN with mscale.
    "gguf_deepseek_v2_lite": (DEEPSEEK_V2(q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16,
                                          n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=32,
                                          num_hidden_layers=2, first_k_dense_replace=1, rope_parameters=rope("yarn", 10000.0, factor=4.0,
                                          mscale=0.707, mscale_all_dim=0.707, beta_fast=32, beta_slow=1, original_max_position_embeddings=32)),
                              ("deepseek2", {"kv_b": T.F16, "": T.Q8_0}, 0, False), EXACT),
    # V3: each of W_uk and W_uv a tensor of its own, codes too.
    "gguf_deepseek_v3_g32": (DEEPSEEK(num_hidden_layers=2, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=8, v_head_dim=16,
                                  n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64,
                                  first_k_dense_replace=1, n_group=2, topk_group=1, num_mtp_layers=0, routed_scaling_factor=1.5,
                                  rope_parameters=rope("yarn", 10000.0, factor=4.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1,
                                                       original_max_position_embeddings=32)),
                         ("deepseek2", {"experts.down": T.Q5_0, "": T.Q8_0}), EXACT),
    "gguf_glm4moe": (GLM(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=0,
                         attention_bias=True, use_qk_norm=True, routed_scaling_factor=1.5, num_mtp_layers=0,
                         rope_parameters=rope(theta=1e6, partial_rotary_factor=0.5)), ("glm4moe", {"": T.Q8_0}), EXACT),
}


def make(name, model_class, config, writer, rows_tolerance):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    config.pad_token_id = None
    config.dtype = torch.float32
    config.architectures = [model_class.__name__]
    model = model_class(config).eval()
    randomise(model, generator)
    with torch.no_grad():
        if writer[0] is write_fp8:
            weights = write_fp8(folder, model, *writer[1:])
        else:
            weights = write_safetensors(folder, model, *writer) if callable(writer[0]) else write_gguf(folder, model, *writer)
    if writer[0] is write_fp8:
        token_ids = torch.randint(0, config.vocab_size, (6,), generator=generator).tolist()
    else:  # no choice of experts that 8-bit activations could change
        token_ids = draw_tokens(model, None, 6, generator)
    result = run(model, token_ids, 4, 0)
    rows = [0, 3, 5]
    float_tolerance = max(1e-5, 3 * rows_tolerance)
    goldens = {
        "seq0.token_ids": torch.tensor(token_ids, dtype=torch.float32), "seq0.prompt_len": torch.tensor([4.0]),
        "seq0.logit_rows": torch.tensor(rows, dtype=torch.float32), "seq0.logits": result["logits"][rows].contiguous(),
        "mid_layer": torch.tensor([0.0]), "max_model_len": torch.tensor([64.0]), "bf16_error": torch.tensor([0.0, 0.0]),
        "tolerance": torch.tensor([float_tolerance, float_tolerance if writer[0] is write_fp8 else max(INT8_ACTIVATIONS, float_tolerance)]),
        "rows_tolerance": torch.tensor([rows_tolerance]),
    } | {f"seq0.hidden.{place}": result[place].contiguous() for place in ("embed", "first", "mid", "last")}
    for tensor, weight in weights.items():
        goldens["rows." + tensor] = weight[[1, len(weight) - 1]].contiguous()
    save_file(goldens, folder / "goldens.safetensors")
    print(f"{name}: {sum(path.stat().st_size for path in folder.iterdir()) / 1024:.0f} KiB")


def make_blocks():
    """Random blocks of every GGUF type of codes, and what they mean: test/goldens/gguf/blocks.safetensors."""
    generator, tensors = np.random.default_rng(11), {}
    for type_ in (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K, T.Q2_K, T.Q3_K, T.IQ4_NL, T.IQ4_XS, T.TQ1_0, T.TQ2_0, T.MXFP4):
        width = 256 if gguf.GGML_QUANT_SIZES[type_][0] == 256 else 64
        if type_ in RANDOM:
            blocks = random_blocks((4, width), type_, generator)
        else:
            blocks = gguf.quants.quantize(generator.normal(0.02, 0.05, (4, width)).astype(np.float32), type_)
        tensors[type_.name + ".blocks"] = torch.from_numpy(blocks.copy())
        tensors[type_.name + ".values"] = torch.from_numpy(gguf.quants.dequantize(blocks, type_).copy())
    (OUT.parent / "gguf").mkdir(exist_ok=True)
    save_file(tensors, OUT.parent / "gguf" / "blocks.safetensors")


if __name__ == "__main__":
    if len(sys.argv) == 1 or "blocks" in sys.argv[1:]:
        make_blocks()
    if len(sys.argv) == 1 or "codes" in sys.argv[1:]:
        make_fp8_codes()
    for model_name, ((model_class, config), writer, rows_tolerance) in MODELS.items():
        if len(sys.argv) == 1 or model_name in sys.argv[1:]:
            make(model_name, model_class, config, writer, rows_tolerance)

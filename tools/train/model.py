"""Qwen3 in plain PyTorch over packed documents, for training; parameter names as in transformers' Qwen3ForCausalLM.

Master weights are float32; every product runs in bfloat16, as inference does. export() writes the result through
transformers, which thereby checks that names and shapes agree.
"""
import json
import shutil
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Config:
    """11.47 M parameters: 22.9 MB in bfloat16."""
    vocab_size: int = 8192
    hidden_size: int = 320
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 1024
    rope_theta: float = 10000.0
    max_seq_len: int = 4096


class Linear(nn.Module):
    def __init__(self, in_features, out_features, zero=False):
        super().__init__()
        weight = torch.zeros(out_features, in_features) if zero else torch.randn(out_features, in_features) * in_features ** -0.5
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return F.linear(x, self.weight.bfloat16())


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x = x.float()
        return (self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS))).bfloat16()


def rotate(x, cos, sin):
    """x [num_tokens, heads, head_dim]; cos, sin [num_tokens, 1, head_dim / 2]; halves are paired, as in Qwen3."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).bfloat16()


def packed_attention(q, k, v, cu_seqlens, max_seq_len):
    """Causal attention within each document. q, k, v [num_tokens, num_heads, head_dim]."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn
        return varlen_attn(q, k, v, cu_seqlens, cu_seqlens, max_seq_len, max_seq_len, window_size=(-1, 0))
    out = []  # the slow obvious version, for tests without a GPU
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        if start < end:
            one = [x[start:end].transpose(0, 1) for x in (q, k, v)]
            out.append(F.scaled_dot_product_attention(*one, is_causal=True).transpose(0, 1))
    return torch.cat(out)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q_size)
        self.k_proj = Linear(config.hidden_size, kv_size)
        self.v_proj = Linear(config.hidden_size, kv_size)
        self.o_proj = Linear(q_size, config.hidden_size, zero=True)
        self.q_norm = RmsNorm(config.head_dim)
        self.k_norm = RmsNorm(config.head_dim)

    def forward(self, x, cos, sin, cu_seqlens):
        c = self.config
        q = rotate(self.q_norm(self.q_proj(x).view(-1, c.num_heads, c.head_dim)), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(-1, c.num_kv_heads, c.head_dim)), cos, sin)
        v = self.v_proj(x).view(-1, c.num_kv_heads, c.head_dim)
        k, v = (t.repeat_interleave(c.num_heads // c.num_kv_heads, dim=1) for t in (k, v))
        return self.o_proj(packed_attention(q, k, v, cu_seqlens, c.max_seq_len).flatten(1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, zero=True)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size)
        self.mlp = Mlp(config)

    def forward(self, x, cos, sin, cu_seqlens):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cu_seqlens)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size)
        inv_freq = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        self.register_buffer("angles", torch.outer(torch.arange(config.max_seq_len).float(), inv_freq), persistent=False)

    def logits(self, token_ids, positions, cu_seqlens, loss_idx):
        """[max_targets, vocab_size] bfloat16, of the tokens of loss_idx only."""
        angles = self.angles[positions].unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        x = self.embed_tokens(token_ids).bfloat16()
        for layer in self.layers:
            x = layer(x, cos, sin, cu_seqlens)
        return F.linear(self.norm(x[loss_idx]), self.embed_tokens.weight.bfloat16())

    def forward(self, token_ids, positions, cu_seqlens, loss_idx, targets):
        """Loss of each target, [max_targets] float32."""
        logits = self.logits(token_ids, positions, cu_seqlens, loss_idx)
        return F.cross_entropy(logits.float(), targets, reduction="none")


def export(model, tokenizer_dir, out_dir):
    """Writes config, two shards of bfloat16 weights and the tokenizer's files to out_dir."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    c = model.config
    vocab = {token["content"]: token["id"] for token in json.loads((tokenizer_dir / "tokenizer.json").read_text())["added_tokens"]}
    end_of_turn, end_of_text = vocab["<|im_end|>"], vocab["<|endoftext|>"]
    hf_config = Qwen3Config(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim, max_position_embeddings=c.max_seq_len,
        rope_theta=c.rope_theta, rms_norm_eps=NORM_EPS, tie_word_embeddings=True, attention_bias=False, use_sliding_window=False,
        bos_token_id=None, eos_token_id=end_of_turn, pad_token_id=end_of_text, dtype=torch.bfloat16)
    hf_model = Qwen3ForCausalLM(hf_config).to(torch.bfloat16)
    weights = {"model." + name: weight.to("cpu", torch.bfloat16) for name, weight in model.state_dict().items()}
    missing, unexpected = hf_model.load_state_dict(weights, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise ValueError(f"export: parameter names differ from Qwen3ForCausalLM's: missing {missing}, unexpected {unexpected}")
    hf_model.tie_weights()
    hf_model.generation_config = GenerationConfig(do_sample=False, eos_token_id=[end_of_turn, end_of_text], pad_token_id=end_of_text)
    hf_model.save_pretrained(out_dir, max_shard_size="13MB")
    # Older readers look for these two names; newer transformers writes rope_parameters and dtype instead.
    config_path = out_dir / "config.json"
    config_path.write_text(json.dumps(json.loads(config_path.read_text()) | {"rope_theta": c.rope_theta, "torch_dtype": "bfloat16"}, indent=2, sort_keys=True) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if tokenizer_dir != out_dir:
            shutil.copy(tokenizer_dir / name, out_dir / name)

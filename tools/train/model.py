"""The parts of a decoder in plain PyTorch over packed documents, for training, and Qwen3 made of them.

Parameter names are those of transformers. Master weights are float32; every product runs in bfloat16, as inference does.
Models with experts: moe.py.
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


def rotate_pairs(x, cos, sin):
    """The same with neighbouring elements paired, as in ERNIE 4.5 and DeepSeek."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).bfloat16()


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
    """Grouped-query attention. Qwen3: the heads of q and k are normed; ERNIE 4.5: RoPE of neighbouring elements instead."""

    def __init__(self, config, has_norms=True, rotate=rotate):
        super().__init__()
        self.config, self.rotate = config, rotate
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q_size)
        self.k_proj = Linear(config.hidden_size, kv_size)
        self.v_proj = Linear(config.hidden_size, kv_size)
        self.o_proj = Linear(q_size, config.hidden_size, zero=True)
        if has_norms:
            self.q_norm = RmsNorm(config.head_dim)
            self.k_norm = RmsNorm(config.head_dim)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x, cos, sin, cu_seqlens):
        c = self.config
        q = self.rotate(self.q_norm(self.q_proj(x).view(-1, c.num_heads, c.head_dim)), cos, sin)
        k = self.rotate(self.k_norm(self.k_proj(x).view(-1, c.num_kv_heads, c.head_dim)), cos, sin)
        v = self.v_proj(x).view(-1, c.num_kv_heads, c.head_dim)
        k, v = (t.repeat_interleave(c.num_heads // c.num_kv_heads, dim=1) for t in (k, v))
        return self.o_proj(packed_attention(q, k, v, cu_seqlens, c.max_seq_len).flatten(1))


class Mlp(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size, zero=True)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, hidden_size, attention, mlp):
        super().__init__()
        self.input_layernorm = RmsNorm(hidden_size)
        self.self_attn = attention
        self.post_attention_layernorm = RmsNorm(hidden_size)
        self.mlp = mlp

    def forward(self, x, cos, sin, cu_seqlens):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cu_seqlens)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, norm; the embedding is also the output matrix. A family gives its layers and its config.json."""

    def __init__(self, config, layers, rope_dim):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(config.hidden_size)
        inv_freq = config.rope_theta ** (-torch.arange(0, rope_dim, 2).float() / rope_dim)
        self.register_buffer("angles", torch.outer(torch.arange(config.max_seq_len).float(), inv_freq), persistent=False)

    def rotation(self, positions):
        angles = self.angles[positions].unsqueeze(1)
        return angles.cos(), angles.sin()

    def embed(self, token_ids):
        return self.embed_tokens(token_ids).bfloat16()

    def hidden(self, token_ids, positions, cu_seqlens):
        """[num_tokens, hidden_size] behind the last norm."""
        cos, sin = self.rotation(positions)
        x = self.embed(token_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, cu_seqlens)
        return self.norm(x)

    def head(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.bfloat16())

    def logits(self, token_ids, positions, cu_seqlens, loss_idx):
        """[max_targets, vocab_size] bfloat16, of the tokens of loss_idx only."""
        return self.head(self.hidden(token_ids, positions, cu_seqlens)[loss_idx])

    def forward(self, token_ids, positions, cu_seqlens, loss_idx, targets):
        """Loss of each target, [max_targets] float32; and what is learnt beside it, likewise, or None."""
        logits = self.logits(token_ids, positions, cu_seqlens, loss_idx)
        return F.cross_entropy(logits.float(), targets, reduction="none"), None

    def after_step(self):
        """What changes without a gradient."""

    def checkpoint(self):
        """The weights as they are published: name -> tensor."""
        return {"model." + name: weight.bfloat16() for name, weight in self.state_dict().items()}


class Qwen3(Decoder):
    def __init__(self, config):
        super().__init__(config, [Layer(config.hidden_size, Attention(config), Mlp(config.hidden_size, config.intermediate_size))
                                  for _ in range(config.num_layers)], config.head_dim)

    def hf_config(self):
        c = self.config
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": c.num_kv_heads, "head_dim": c.head_dim,
                "attention_bias": False, "use_sliding_window": False, "sliding_window": None}


def export(model, tokenizer_dir, out_dir, max_shard_bytes=13_000_000):
    """Writes config, shards of bfloat16 weights and the tokenizer's files to out_dir, and reads them with transformers."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    c = model.config
    vocab = {token["content"]: token["id"] for token in json.loads((tokenizer_dir / "tokenizer.json").read_text())["added_tokens"]}
    end_of_turn, end_of_text = vocab["<|im_end|>"], vocab["<|endoftext|>"]
    # Older readers look for rope_theta and torch_dtype, newer transformers for rope_parameters and dtype.
    config = model.hf_config() | {
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size, "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads, "max_position_embeddings": c.max_seq_len, "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta}, "rms_norm_eps": NORM_EPS, "hidden_act": "silu",
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": end_of_turn, "pad_token_id": end_of_text, "dtype": "bfloat16",
        "torch_dtype": "bfloat16", "use_cache": True}
    write_json(out_dir / "config.json", config)
    write_json(out_dir / "generation_config.json", {"do_sample": False, "eos_token_id": [end_of_turn, end_of_text], "pad_token_id": end_of_text})
    shards, num_bytes = [{}], 0
    for name, weight in sorted(model.checkpoint().items()):
        if num_bytes + weight.nbytes > max_shard_bytes:
            shards, num_bytes = shards + [{}], 0
        shards[-1][name] = weight.detach().cpu().contiguous()
        num_bytes += weight.nbytes
    if len(shards) == 1:
        save_file(shards[0], out_dir / "model.safetensors", metadata={"format": "pt"})
    else:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        for name, shard in zip(names, shards):
            save_file(shard, out_dir / name, metadata={"format": "pt"})
        total = sum(weight.nbytes for shard in shards for weight in shard.values())
        write_json(out_dir / "model.safetensors.index.json", {
            "metadata": {"total_size": total}, "weight_map": {tensor: name for name, shard in zip(names, shards) for tensor in shard}})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if tokenizer_dir != out_dir:
            shutil.copy(tokenizer_dir / name, out_dir / name)
    _, info = AutoModelForCausalLM.from_pretrained(out_dir, output_loading_info=True)
    unread = {name for name in info["unexpected_keys"] if not name.startswith(f"model.layers.{c.num_layers}.")}
    if info["missing_keys"] or unread:
        raise ValueError(f"export: names differ from those of transformers: missing {info['missing_keys']}, not read {unread}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")

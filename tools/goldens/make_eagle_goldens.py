#!/usr/bin/env python3
"""Makes test/goldens/eagle/: a tiny random Llama, EAGLE-3 heads for it, and what a plain PyTorch program computes with them.

    python tools/goldens/make_eagle_goldens.py

Needs torch, transformers and safetensors; goldens were made with torch 2.13 (CPU) and transformers 5.23. Seeded. target/ holds the
model; every other folder a head (config.json, model.safetensors) and goldens.safetensors:

    token_ids [n + 1]                 the last one has no place of its own: it is the token behind the last known one
    hidden [n, hidden_size]           f32: output of the head's layer, before its norm
    logits [n, draft_vocab_size]
    chain_logits [1, draft_vocab_size]  of the last place, where the head's own output of the place before stands for what is known
                                      of the model, as when it drafts a second token

The head, written down from its description: what is known of a place is fc of the inputs of three layers of the model, side by
side. The layer attends over [norm of the next token's embedding | norm of what is known]; its residual starts as what is known.
"""

import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "eagle"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB, LAYERS, NUM_TOKENS, EPS = 48, 4, 2, 12, 96, 160, 6, 37, 1e-6
THETA = 10000.0


def random_weights(shapes, generator):
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = (1 + 0.2 * noise if "norm" in name else noise if "embed" in name else noise / shape[-1] ** 0.5).bfloat16()
    return weights


def rms_norm(x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def rotate(x, positions):
    """x [heads, n, HEAD_DIM]: elements j and j + HEAD_DIM / 2 turn by position * THETA ^ (-2j / HEAD_DIM)."""
    angles = positions[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], dim=-1)


def attend(weights, x):
    n, positions = len(x), torch.arange(len(x)).float()
    split = lambda name, heads: (x @ weights[f"midlayer.self_attn.{name}_proj.weight"].T).view(n, heads, HEAD_DIM).transpose(0, 1)
    q, k, v = rotate(split("q", HEADS), positions), rotate(split("k", KV_HEADS), positions), split("v", KV_HEADS)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=0) for t in (k, v))
    scores = q @ k.transpose(1, 2) / HEAD_DIM ** 0.5 + torch.full((n, n), -torch.inf).triu(1)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1) @ weights["midlayer.self_attn.o_proj.weight"].T


def run_head(weights, known, embedded):
    """known, embedded [n, HIDDEN] -> the layer's output [n, HIDDEN]."""
    x = torch.cat([rms_norm(embedded, weights["midlayer.input_layernorm.weight"]), rms_norm(known, weights["midlayer.hidden_norm.weight"])], -1)
    residual = known + attend(weights, x)
    x = rms_norm(residual, weights["midlayer.post_attention_layernorm.weight"])
    gate, up = (x @ weights[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return residual + (torch.nn.functional.silu(gate) * up) @ weights["midlayer.mlp.down_proj.weight"].T


def logits_of(weights, hidden):
    return rms_norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T


def make_target(generator):
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=128, bos_token_id=1, eos_token_id=2)
    config.pad_token_id, config.dtype = None, torch.bfloat16
    model = LlamaForCausalLM(config)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict(random_weights(shapes, generator))
    folder = OUT / "target"
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def make_head(name, model, generator, draft_vocab, layer_ids, own_embedding):
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (draft_vocab, HIDDEN),
        "midlayer.hidden_norm.weight": (HIDDEN,), "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "midlayer.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN), "midlayer.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN), "midlayer.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "midlayer.mlp.gate_proj.weight": (MLP, HIDDEN), "midlayer.mlp.up_proj.weight": (MLP, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, MLP),
    }
    if own_embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    weights = random_weights(shapes, generator)
    config = dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=1,
                  num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=64, vocab_size=VOCAB,
                  draft_vocab_size=draft_vocab, rms_norm_eps=EPS, rope_theta=THETA, hidden_act="silu", tie_word_embeddings=False,
                  bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16")
    if layer_ids:
        config["eagle_config"] = dict(eagle_aux_hidden_state_layer_ids=layer_ids, use_aux_hidden_state=True)
    tables = {}
    if draft_vocab < VOCAB:
        ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
        tables = {"d2t": ids - torch.arange(draft_vocab), "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)}
    folder = OUT / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file(weights | tables, folder / "model.safetensors", metadata={"format": "pt"})

    weights = {key: value.float() for key, value in weights.items()}
    token_ids = torch.randint(0, VOCAB, (NUM_TOKENS + 1,), generator=generator)
    with torch.no_grad():
        states = model(input_ids=token_ids[None, :-1], output_hidden_states=True).hidden_states  # [i]: what layer i takes
        known = torch.cat([states[i][0] for i in layer_ids or (2, LAYERS // 2, LAYERS - 3)], -1) @ weights["fc.weight"].T
        table = weights["embed_tokens.weight"] if own_embedding else model.model.embed_tokens.weight
        embedded = table[token_ids[1:]]
        hidden = run_head(weights, known, embedded)
        known[-1] = hidden[-2]
        chained = run_head(weights, known, embedded)
    save_file({"token_ids": token_ids.float(), "hidden": hidden.contiguous(), "logits": logits_of(weights, hidden).contiguous(),
               "chain_logits": logits_of(weights, chained[-1:]).contiguous()}, folder / "goldens.safetensors")


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    seeded = torch.Generator().manual_seed(15)
    target = make_target(seeded)
    make_head("head", target, seeded, 56, None, False)
    make_head("head_all_tokens", target, seeded, VOCAB, [1, 4, 5], True)

#!/usr/bin/env python3
"""Writes test/goldens/pooling/mini-qwen3.json: what transformers says a prompt's pooled hidden states are.

    tools/goldens/make_pooling_goldens.py

Runs AutoModel on models/mini-qwen3 in float32: last_hidden_state, which is after the final norm. Of each prompt: the
state of the last token, of the first one (cls), and the mean. `bf16_error` is the largest relative L2 distance of
transformers' own bfloat16 from that. Needs torch and transformers.
"""
import json
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "mini-qwen3"
TEXTS = [
    "A",
    "The cat sat on the mat.",
    "What is the capital of France?",
    "Hidden states after the final norm of the last token stand for the whole text. " * 3,
    "Zahlen: 3, 1, 4, 1, 5, 9, 2, 6 und noch ein paar Wörter dazu.",
]


def pooled(model, token_ids):
    with torch.no_grad():
        states = model(torch.tensor([token_ids])).last_hidden_state[0].float()
    return {"last": states[-1], "mean": states.mean(0), "cls": states[0]}


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    exact = AutoModel.from_pretrained(MODEL, dtype=torch.float32)
    rounded = AutoModel.from_pretrained(MODEL, dtype=torch.bfloat16)
    prompts, worst = [], 0.0
    for text in TEXTS:
        token_ids = tokenizer(text)["input_ids"]
        states, near = pooled(exact, token_ids), pooled(rounded, token_ids)
        worst = max([worst] + [float((near[key] - states[key]).norm() / states[key].norm()) for key in states])
        entry = {"token_ids": token_ids}
        entry |= {key: [float(f"{value:.7g}") for value in state.tolist()] for key, state in states.items()}
        prompts.append(entry)
    out = ROOT / "test" / "goldens" / "pooling" / "mini-qwen3.json"
    out.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in prompts)
    out.write_text(f'{{"bf16_error":{worst:.4f},"prompts":[\n{lines}\n]}}\n')
    print(f"{out.relative_to(ROOT)}: {len(prompts)} prompts of {[len(e['token_ids']) for e in prompts]} tokens, bf16 error {worst:.4f}")


if __name__ == "__main__":
    main()

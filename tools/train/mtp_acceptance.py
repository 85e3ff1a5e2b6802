"""How often the layer for multi-token prediction guesses what the model says: the second token of each step.

    spate eval models/mini-deepseek --outputs answers.jsonl
    python mtp_acceptance.py models/mini-deepseek answers.jsonl [--limit 20]

Runs over the prompts and the answers that the model gave, in float32 on the CPU. A guess counts as accepted where the
layer's most likely token is the one that the model wrote; the first token of an answer has no guess.
"""
import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import moe
from evaluate import render
from generate import MODEL_DIR


def load(directory):
    """The training model of a published checkpoint: the inverse of checkpoint()."""
    model = moe.DeepSeek(moe.DeepSeekConfig())
    tensors = load_file(directory / "model.safetensors")
    published = model.checkpoint()
    if tensors.keys() != published.keys():
        raise SystemExit(f"{directory}: tensors differ from those of DeepSeekConfig: {sorted(tensors.keys() ^ published.keys())}")
    last = f"layers.{model.config.num_layers}."
    stacked, state = defaultdict(dict), {}
    for name, weight in tensors.items():
        name = name.removeprefix("model.").replace(last, "mtp.").replace(".gate.weight", ".router").replace(".gate.e_score_correction_bias", ".bias")
        if ".experts." in name:
            stem, expert = name.split(".experts.")
            idx, matrix, _ = expert.split(".")
            stacked[f"{stem}.{matrix}"][int(idx)] = weight
        else:
            state[name] = weight.float()
    state |= {name: torch.stack([experts[i] for i in range(len(experts))]).float() for name, experts in stacked.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any(not name.endswith(".load") for name in missing):
        raise SystemExit(f"{directory}: missing {missing}, unexpected {unexpected}")
    return model.requires_grad_(False)


def accepted(model, prompt, answer):
    """Of each token of the answer but the first: whether the layer guessed it."""
    token_ids = torch.tensor(prompt + answer)
    positions, cu_seqlens = torch.arange(len(token_ids)), torch.tensor([0, len(token_ids)], dtype=torch.int32)
    hidden = model.hidden(token_ids, positions, cu_seqlens)
    rows = torch.arange(len(prompt) - 1, len(token_ids) - 2)  # row i knows token i + 1 and guesses token i + 2
    guesses = model.head(model.mtp_hidden(token_ids, hidden, positions, cu_seqlens)[rows]).argmax(-1)
    return guesses == token_ids[rows + 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--limit", type=int, help="questions per skill")
    args = parser.parse_args()
    model, tokenizer = load(args.model), AutoTokenizer.from_pretrained(args.model)
    questions = [json.loads(line) for line in (MODEL_DIR / "eval" / "questions.jsonl").read_text().splitlines()]
    answers = [json.loads(line) for line in args.answers.read_text().splitlines()]
    if [question["skill"] for question in questions] != [answer["skill"] for answer in answers]:
        raise SystemExit(f"{args.answers}: needs one line for each of {len(questions)} questions, has {len(answers)}")
    by_skill = defaultdict(list)
    for question, answer in zip(questions, answers):
        if args.limit is None or len(by_skill[question["skill"]]) < args.limit:
            prompt = tokenizer(render(tokenizer, question))["input_ids"]
            by_skill[question["skill"]].append(accepted(model, prompt, answer["token_ids"]))
    for skill, results in by_skill.items():
        print(f"{skill} {torch.cat(results).float().mean():.3f}")
    print(f"all {torch.cat([result for results in by_skill.values() for result in results]).float().mean():.3f}")


if __name__ == "__main__":
    main()

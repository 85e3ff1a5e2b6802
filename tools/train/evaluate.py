"""Scores a model folder on eval/questions.jsonl: greedy, bfloat16, exact match per skill; and perplexity on eval/text.txt.

    python evaluate.py DIR [--limit 5] [--out scores.json]

The rule: render the chat template, generate, drop everything up to the last </think>, strip white space, compare.
"""
import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from generate import MODEL_DIR

BATCH_SIZE = 128


def render(tokenizer, question):
    options = {} if "enable_thinking" not in question else {"enable_thinking": question["enable_thinking"]}
    return tokenizer.apply_chat_template(question["messages"], tools=question.get("tools"), tokenize=False, add_generation_prompt=True, **options)


@torch.inference_mode()
def answers(model, tokenizer, questions):
    """The decoded answers, thinking included, to questions of one skill."""
    order = sorted(range(len(questions)), key=lambda idx: len(render(tokenizer, questions[idx])))
    texts = [""] * len(questions)
    for start in range(0, len(order), BATCH_SIZE):
        chosen = order[start:start + BATCH_SIZE]
        inputs = tokenizer([render(tokenizer, questions[idx]) for idx in chosen], return_tensors="pt", padding=True, padding_side="left").to(model.device)
        inputs.pop("token_type_ids", None)
        output = model.generate(**inputs, max_new_tokens=max(questions[idx]["max_tokens"] for idx in chosen), do_sample=False)
        new_tokens = output[:, inputs["input_ids"].size(1):]
        for idx, text in zip(chosen, tokenizer.batch_decode(new_tokens, skip_special_tokens=True)):
            texts[idx] = text
    return texts


def final_part(text):
    return text.rsplit("</think>", 1)[-1].strip()


@torch.inference_mode()
def perplexity(model, tokenizer, text):
    """Per token, over documents that each start from nothing."""
    total, count = 0.0, 0
    for document in text.strip("\n").split("\n<|endoftext|>\n"):
        ids = tokenizer(document, return_tensors="pt")["input_ids"].to(model.device)
        logits = model(ids).logits.float()
        total += torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum").item()
        count += ids.size(1) - 1
    return math.exp(total / count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--limit", type=int, help="questions per skill")
    parser.add_argument("--samples", type=int, default=2, help="right answers to print per skill; wrong ones up to 6")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    start = time.time()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    by_skill = defaultdict(list)
    for line in (MODEL_DIR / "eval" / "questions.jsonl").read_text().splitlines():
        question = json.loads(line)
        by_skill[question["skill"]].append(question)
    scores = {}
    for skill, questions in by_skill.items():
        questions = questions[:args.limit]
        texts = answers(model, tokenizer, questions)
        right = [final_part(text) == question["answer"] for text, question in zip(texts, questions)]
        scores[skill] = sum(right) / len(right)
        shown = [idx for idx, ok in enumerate(right) if ok][:args.samples] + [idx for idx, ok in enumerate(right) if not ok][:6]
        for idx in shown:
            print(f"{skill} {'right' if right[idx] else 'WRONG'}: {questions[idx]['messages'][-1]['content'][-160:]!r} -> {texts[idx]!r}; expected {questions[idx]['answer']!r}")
        print(f"== {skill} {scores[skill]:.3f} ({time.time() - start:.0f} s)", flush=True)
    summary = {"average": sum(scores.values()) / len(scores), "scores": scores}
    if args.limit is None:
        summary["perplexity"] = perplexity(model, tokenizer, (MODEL_DIR / "eval" / "text.txt").read_text())
    print(json.dumps(summary))
    if args.out:
        args.out.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How far quantised models are from the model they were made from, token by token, through transformers.

    python compare.py models/mini-qwen3 /tmp/int4-rtn /tmp/int4-gptq

Finer than a score: the mean Kullback-Leibler divergence of the next-token distribution, in nats, and the share of tokens whose
most probable successor is the same; on the held-out stories and on the questions with their answers, in f32 with weights
unpacked. Needs torch, transformers, compressed-tensors (0.20); `spate quantize` writes the directories.
"""
import argparse
import json
import warnings
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging


def story_ids(model_dir, tokenizer, count):
    texts = (model_dir / "eval" / "text.txt").read_text().split("\n<|endoftext|>\n")[:count]
    return [tokenizer(text.strip(), return_tensors="pt").input_ids for text in texts]


def question_ids(model_dir, tokenizer, count_per_skill):
    asked, ids = Counter(), []
    for line in (model_dir / "eval" / "questions.jsonl").read_text().splitlines():
        question = json.loads(line)
        asked[question["skill"]] += 1
        if asked[question["skill"]] > count_per_skill:
            continue
        text = tokenizer.apply_chat_template(question["messages"], tools=question.get("tools"), tokenize=False,
                                             add_generation_prompt=True, enable_thinking=False)
        ids.append(tokenizer(text + question["answer"] + "<|im_end|>", return_tensors="pt").input_ids)
    return ids


@torch.no_grad()
def log_probabilities(model_dir, sequences):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    return [model(ids).logits[0, :-1].log_softmax(-1) for ids in sequences]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("quantized", type=Path, nargs="+")
    parser.add_argument("--stories", type=int, default=60)
    parser.add_argument("--questions", type=int, default=12, help="of each skill")
    args = parser.parse_args()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    for name, sequences in (("stories", story_ids(args.model, tokenizer, args.stories)),
                            ("questions", question_ids(args.model, tokenizer, args.questions))):
        expected = log_probabilities(args.model, sequences)
        num_tokens = sum(len(p) for p in expected)
        for model_dir in args.quantized:
            actual = log_probabilities(model_dir, sequences)
            divergence = sum((p.exp() * (p - q)).sum().item() for p, q in zip(expected, actual)) / num_tokens
            same = sum((p.argmax(-1) == q.argmax(-1)).sum().item() for p, q in zip(expected, actual)) / num_tokens
            print(f"{name:10} {model_dir.name:24} divergence {divergence:.6f}  same token {same:.4f}  ({num_tokens} tokens)")


if __name__ == "__main__":
    main()

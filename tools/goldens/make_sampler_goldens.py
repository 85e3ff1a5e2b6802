#!/usr/bin/env python3
"""Makes test/goldens/sampler/cases.json: the distributions that other implementations sample from.

    python tools/goldens/make_sampler_goldens.py

Needs torch and transformers; made with torch 2.13 (CPU) and transformers 5.23. Each case has the raw logits of one row, its
prompt and output tokens, the sampling parameters, and `probs`: the probability of every token in float64, 0 where it is cut.

The order is vLLM's: logit_bias, penalties, temperature, min_p, top_k, top_p. The repetition penalty, the temperature and the
three cuts are transformers' logits processors, each applied by itself. transformers has no presence or frequency penalty;
they follow the formula of OpenAI's API reference: logit -= count * frequency_penalty + (count > 0) * presence_penalty.
"""

import json
import pathlib

import torch
from transformers import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
                          TopPLogitsWarper)

OUT = pathlib.Path(__file__).resolve().parents[2] / "test" / "goldens" / "sampler" / "cases.json"
DEFAULTS = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
                frequency_penalty=0.0, logit_bias={})


def final_probs(logits, prompt, output, params):
    scores = logits.clone().double()[None]
    for token, bias in params["logit_bias"].items():
        scores[0, int(token)] += bias
    history = torch.tensor([prompt + output])
    if params["repetition_penalty"] != 1:
        scores = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])(history, scores)
    for token in set(output):
        scores[0, token] -= params["frequency_penalty"] * output.count(token) + params["presence_penalty"]
    warpers = [TemperatureLogitsWarper(params["temperature"])]
    if params["min_p"] > 0:
        warpers.append(MinPLogitsWarper(params["min_p"]))
    if params["top_k"] > 0:
        warpers.append(TopKLogitsWarper(params["top_k"]))
    if params["top_p"] < 1:
        warpers.append(TopPLogitsWarper(params["top_p"]))
    for warper in warpers:
        scores = warper(history, scores)
    return torch.softmax(scores[0], dim=-1)


def main():
    torch.manual_seed(7)
    cases = []

    def add(name, vocab_size=24, spread=1.5, **change):
        params = DEFAULTS | change
        logits = torch.randn(vocab_size) * spread
        prompt = torch.randint(vocab_size, (6,)).tolist()
        # The likely tokens repeat, so that penalties matter.
        likely = logits.argsort(descending=True).tolist()
        output = [likely[i % vocab_size] for i in (0, 1, 0, 2, 0)]
        probs = final_probs(logits, prompt, output, params)
        cases.append(dict(name=name, logits=logits.tolist(), prompt=prompt, output=output, params=params,
                          probs=[float(f"{p:.9g}") for p in probs.tolist()]))

    add("temperature 1")
    add("temperature 0.5", temperature=0.5)
    add("temperature 2.5", temperature=2.5)
    add("a vocabulary of one", vocab_size=1)
    add("a vocabulary of 200", vocab_size=200, spread=1.0)
    add("top_k 1", top_k=1)
    add("top_k 5", top_k=5)
    add("top_k of all", top_k=24)
    add("top_p 0.3", top_p=0.3)
    add("top_p 0.9", top_p=0.9, temperature=1.7)
    add("top_p 0.99", top_p=0.99, vocab_size=200)
    add("min_p 0.05", min_p=0.05)
    add("min_p 0.5", min_p=0.5, temperature=2.0)
    add("top_k and top_p", top_k=7, top_p=0.8)
    add("min_p, top_k and top_p", min_p=0.02, top_k=12, top_p=0.9, temperature=1.3)
    add("repetition 1.4", repetition_penalty=1.4)
    add("repetition 0.7", repetition_penalty=0.7)
    add("presence 1.2", presence_penalty=1.2)
    add("frequency 0.9", frequency_penalty=0.9)
    add("frequency -0.6", frequency_penalty=-0.6)
    add("all penalties", repetition_penalty=1.2, presence_penalty=-0.4, frequency_penalty=0.5, temperature=0.8)
    add("all penalties and cuts", repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3, temperature=1.2,
        min_p=0.01, top_k=10, top_p=0.95)
    add("bias", logit_bias={"3": 2.5, "5": -4.0})
    add("bias under a penalty", logit_bias={"0": 1.5, "7": -1.0}, repetition_penalty=1.3, top_k=6)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()

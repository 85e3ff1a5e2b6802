"""The Python package, checked. Arguments: a model directory. SPATE_LIBRARY names libspate.so."""

import asyncio
import copy
import gc
import itertools
import json
import os
import pickle
import signal
import sys
import threading
import time

from spate import LLM, AsyncLLM, BeamSearchParams, SamplingParams, SpateError

model = sys.argv[1]
llm = LLM(model, device="cpu", pooler_config="last", max_model_len=1024)
greedy = SamplingParams(temperature=0, max_tokens=12)

prompts = ["The river is in", "One two", llm.encode("Hello")]
results = llm.generate(prompts, greedy, use_tqdm=False)
assert [result.prompt for result in results] == ["The river is in", "One two", None]
assert results[2].prompt_token_ids == prompts[2], results[2]
for result in results:
    output = result.outputs[0]
    assert result.finished and output.finished() and output.finish_reason in ("stop", "length")
    assert 0 < len(output.token_ids) <= 12 and output.index == 0
assert llm.generate("One two", greedy)[0].outputs[0].text == results[1].outputs[0].text
assert llm.decode(llm.encode("One two", add_special_tokens=False)) == "One two"

scored = llm.generate("One two", SamplingParams(temperature=0, max_tokens=4, logprobs=2))[0].outputs[0]
assert len(scored.logprobs) == len(scored.token_ids) and scored.cumulative_logprob <= 0
for entry, token_id in zip(scored.logprobs, scored.token_ids):
    assert next(iter(entry)) == token_id and entry[token_id].decoded_token == llm.decode([token_id]), entry
allowed = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[scored.token_ids[0]])
assert set(llm.generate("Two", allowed)[0].outputs[0].token_ids) == {scored.token_ids[0]}
first = llm.generate("The river is in", greedy)[0].outputs[0].token_ids[0]
banned = SamplingParams(temperature=0, max_tokens=12, bad_words=[llm.decode([first])])
assert first not in llm.generate("The river is in", banned)[0].outputs[0].token_ids
for prompt in ("One two", llm.encode("One two")):
    whole = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    assert len(whole.prompt_token_ids) + len(whole.outputs[0].token_ids) == 1024, len(whole.outputs[0].token_ids)
several = llm.generate("One", [SamplingParams(n=3, temperature=1, seed=1, max_tokens=4)])[0]
assert [output.index for output in several.outputs] == [0, 1, 2]
shaped = llm.generate("A number:", SamplingParams(max_tokens=8, structured_outputs={"regex": "[0-9]{3}"}))[0]
assert shaped.outputs[0].text.isdigit() and len(shaped.outputs[0].text) == 3

conversation = [{"role": "user", "content": "Hello! Please say hello."}]
chat = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=16))
assert len(chat) == 1 and chat[0].outputs[0].text
scored_chat = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=4, logprobs=2))[0].outputs[0]
assert [next(iter(entry)) for entry in scored_chat.logprobs] == scored_chat.token_ids
try:
    llm.chat([])
except ValueError as error:
    assert "messages is empty" in str(error)
else:
    raise AssertionError("no error")
assert len(llm.chat([conversation, conversation], greedy, use_tqdm=False)) == 2

vectors = [result.outputs.embedding for result in llm.embed(["A cat.", "A dog."], use_tqdm=False)]
assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4
assert len(llm.embed("A cat.", dimensions=8)[0].outputs.embedding) == 8

# Beam search, against the plain procedure: each step asks anew for every beam, the prefix cache finds nothing.
with open(os.path.join(model, "generation_config.json")) as file:
    end_ids = json.load(file)["eos_token_id"]
end_ids = end_ids if isinstance(end_ids, list) else [end_ids]
salts = itertools.count()


def next_tokens(prompt, count):
    answer = llm._engine.call("/v1/completions", {
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": count,
        "return_tokens_as_token_ids": True, "cache_salt": f"beam-{next(salts)}"})
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return [(int(label.removeprefix("token_id:")), value) for label, value in top.items()][:count]


def plain_beam_search(prompt, params):
    running, complete = [([], 0.0)], []
    for _ in range(params.max_tokens):
        grown = [(ids + [token_id], total + value)
                 for ids, total in running for token_id, value in next_tokens(prompt + ids, 2 * params.beam_width)]
        grown.sort(key=lambda beam: -beam[1])
        ends = [beam for beam in grown if beam[0][-1] in end_ids and not params.ignore_eos]
        complete += [(ids, total, len(prompt) + len(ids) - 1) for ids, total in ends]
        running = [beam for beam in grown if beam not in ends][:params.beam_width]
    complete += [(ids, total, len(prompt) + len(ids)) for ids, total in running]
    complete.sort(key=lambda beam: -beam[1] / beam[2] ** params.length_penalty)
    return complete[:params.beam_width]


num_ended = 0
for text, params in (("The river is in", BeamSearchParams(beam_width=3, max_tokens=8)),
                     ("One two", BeamSearchParams(beam_width=2, max_tokens=12, length_penalty=0.0)),
                     ("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", BeamSearchParams(4, 10)),
                     ("Once", BeamSearchParams(beam_width=4, max_tokens=5, ignore_eos=True, length_penalty=2.0))):
    prompt = llm.encode(text)
    found = llm.beam_search([prompt, text], params)
    wanted = plain_beam_search(prompt, params)
    for output in found:
        assert [beam.tokens for beam in output.sequences] == [prompt + ids for ids, _, _ in wanted], (output, wanted)
        for beam, (ids, total, _) in zip(output.sequences, wanted):
            assert abs(beam.cum_logprob - total) < 1e-3 and len(beam.logprobs) == len(ids), (beam, total)
            assert beam.text == llm.decode(beam.tokens)
            num_ended += beam.finish_reason == "stop"
assert num_ended > 0
greedy_ids = llm.generate("One two", greedy)[0].outputs[0].token_ids
assert llm.beam_search("One two", BeamSearchParams(1, 12))[0].sequences[0].tokens[-len(greedy_ids):] == greedy_ids

for bad in (lambda: llm.generate("x", SamplingParams(temperature=9)), lambda: llm.generate("x " * 5000)):
    try:
        bad()
    except SpateError as error:
        assert error.param in ("temperature", "prompt"), error
    else:
        raise AssertionError("no error")
# Results travel between processes, a model does not: not by pickle, not by copy, not by fork.
assert pickle.loads(pickle.dumps(results)) == results
for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
    try:
        duplicate(llm._engine if duplicate is copy.copy else llm)
    except TypeError as error:
        assert "load it where it is used" in str(error), error
    else:
        raise AssertionError("no error")
child = os.fork()
if child == 0:
    try:
        llm.generate("One two", greedy)
    except RuntimeError as error:
        if "forked" in str(error):
            llm.close()
            os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert llm.generate("One two", greedy)[0].outputs[0].text == results[1].outputs[0].text
try:
    llm.generate(["a", "b"], [greedy])
except ValueError:
    pass
else:
    raise AssertionError("no error")

for bad, kind in ((lambda: llm.generate([b"bytes"], greedy), TypeError),
                  (lambda: llm.generate("x", SamplingParams(temperature=float("nan"))), ValueError),
                  (lambda: llm.chat([{"role": "user", "content": "x"}], greedy, stream=True), ValueError)):
    unraisable = []
    sys.unraisablehook = unraisable.append
    try:
        bad()
    except kind as error:
        assert str(error), error
    else:
        raise AssertionError("no error")
    gc.collect()
    assert not unraisable, unraisable  # nothing is said of an object that never came to be
sys.unraisablehook = sys.__unraisablehook__

# Other threads run while the engine does, and Ctrl-C ends what runs.
ticks = []
stop = threading.Event()
ticker = threading.Thread(target=lambda: [ticks.append(1) or time.sleep(0.005) for _ in iter(stop.is_set, True)])
ticker.start()
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a script starts in the background
long_run = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    llm.generate(["One two"] * 64, long_run, use_tqdm=False)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("Ctrl-C had no effect")
stop.set()
ticker.join()
assert time.monotonic() - start < 5 and len(ticks) > 20, (time.monotonic() - start, len(ticks))
assert llm.generate("One two", greedy)[0].outputs[0].text == results[1].outputs[0].text
llm.close()

try:
    LLM("/no/such/model")
except ValueError as error:
    assert "does not exist" in str(error), error
else:
    raise AssertionError("no error")
try:
    LLM(model, max_modle_len=3)
except ValueError as error:
    assert "max-model-len" in str(error), error
else:
    raise AssertionError("no error")


async def stream() -> None:
    llm = AsyncLLM(model, device="cpu", pooler_config="last", max_model_len=1024)

    async def one() -> str:
        seen = []
        async for result in llm.generate("One two", greedy):
            seen.append(result.outputs[0].text)
        assert result.finished and len(seen) > 2 and all(b.startswith(a) for a, b in zip(seen, seen[1:]))
        return seen[-1]

    texts = await asyncio.gather(*[one() for _ in range(4)])
    assert set(texts) == {results[1].outputs[0].text}, texts
    async for _ in llm.generate("One two", long_run):
        break  # ends the request
    assert len((await llm.embed("A cat.")).outputs.embedding) == len(vectors[0])
    llm.close()


asyncio.run(stream())
print("python package: ok")

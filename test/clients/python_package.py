"""The Python package, checked. Arguments: a model directory. SPATE_LIBRARY names libspate.so."""

import asyncio
import os
import signal
import sys
import threading
import time

from spate import LLM, AsyncLLM, SamplingParams, SpateError

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
several = llm.generate("One", [SamplingParams(n=3, temperature=1, seed=1, max_tokens=4)])[0]
assert [output.index for output in several.outputs] == [0, 1, 2]
shaped = llm.generate("A number:", SamplingParams(max_tokens=8, structured_outputs={"regex": "[0-9]{3}"}))[0]
assert shaped.outputs[0].text.isdigit() and len(shaped.outputs[0].text) == 3

conversation = [{"role": "user", "content": "Hello! Please say hello."}]
chat = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=16))
assert len(chat) == 1 and chat[0].outputs[0].text
assert len(llm.chat([conversation, conversation], greedy, use_tqdm=False)) == 2

vectors = [result.outputs.embedding for result in llm.embed(["A cat.", "A dog."], use_tqdm=False)]
assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-4
assert len(llm.embed("A cat.", dimensions=8)[0].outputs.embedding) == 8

for bad in (lambda: llm.generate("x", SamplingParams(temperature=9)), lambda: llm.generate("x " * 5000)):
    try:
        bad()
    except SpateError as error:
        assert error.param in ("temperature", "prompt"), error
    else:
        raise AssertionError("no error")
try:
    llm.generate(["a", "b"], [greedy])
except ValueError:
    pass
else:
    raise AssertionError("no error")

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

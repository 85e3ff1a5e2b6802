#!/usr/bin/env python3
"""What a JSON schema costs requests: the same answers from `spate serve --device mock`, with the schema and without it, in turn.

  test/soak/schema_cost.py build/spate [--streams 32] [--beside 0] [--step-ms 10] [--rounds 15] [--max-cost 0.03]

A step of the mock takes the same time whatever it holds, so a difference is the host's: advancing the grammar and the masks, which may
come while their step runs. In the long text nothing is forced; in the list forced tokens are drafts, several a step, so that the
schema pays; drafts need the token before them, so the host waits for it there. Each round runs both kinds, which goes first changes from
round to round, and the cost is the median of the rounds' own differences: what disturbs the machine for longer than a round falls out.
--beside: so many other streams, always without a schema, run beside those that are measured.
Exit code 0 if the cost is at most --max-cost. Only Python's standard library is needed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import types
import urllib.request

from mock_streams import start_server

ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer", "minimum": 0},
                                         "kind": {"enum": ["small", "large"]}},
        "required": ["name", "count", "kind"], "additionalProperties": False}
CASES = {  # name: schema, answer
    "a long text": ({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
                     "additionalProperties": False},
                    json.dumps({"text": "again and " * 100})),
    "a list of objects": ({"type": "array", "items": ITEM},
                          json.dumps([{"name": f"again {i}", "count": 17 * i, "kind": ["small", "large"][i % 2]} for i in range(8)])),
}


def ask(port, schema, results, i):
    body = {"messages": [{"role": "user", "content": "list"}], "max_tokens": 900}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    results[i] = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


def seconds_a_token(port, num_streams, schema, answer):
    results = [None] * num_streams
    threads = [threading.Thread(target=ask, args=(port, schema, results, i)) for i in range(num_streams)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    if any(result is None or result[0] != answer for result in results):
        sys.exit(f"an answer is not the scripted one: {results[0]}")
    return seconds / sum(num_tokens for _, num_tokens in results)


def ask_on(port, stopped):
    while not stopped.is_set():
        ask(port, None, {}, 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("spate")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--max-cost", type=float, default=0.03)
    args = parser.parse_args()
    medians = [measure(args, name, *case) for name, case in CASES.items()]
    return 0 if max(medians) <= args.max_cost else 1


def measure(args, name, schema, answer):
    with tempfile.TemporaryDirectory() as work:
        options = types.SimpleNamespace(spate=args.spate, streams=args.streams + args.beside, slow=0, step_ms=args.step_ms)
        server, port, _ = start_server(options, work, answer, ["--max-prefill-stall-ms", "0"])
        stopped = threading.Event()
        others = [threading.Thread(target=ask_on, args=(port, stopped)) for _ in range(args.beside)]
        try:
            for other in others:
                other.start()
            for used in (schema, None):
                seconds_a_token(port, args.streams, used, answer)  # the grammar is compiled, pools are filled
            costs = []
            for i in range(args.rounds):
                times = {used is not None: seconds_a_token(port, args.streams, used, answer)
                         for used in ((schema, None) if i % 2 else (None, schema))}
                costs.append(1 - times[False] / times[True])
        finally:
            stopped.set()
            for other in others:
                other.join()
            server.kill()
            server.wait()
    low, median, high = statistics.quantiles(costs, n=4)
    print(f"{name}: {args.streams} streams, {args.beside} others beside them, steps of {args.step_ms:g} ms, "
          f"{args.rounds} rounds: a JSON schema costs {100 * median:.2f} % of the tokens/s "
          f"(quartiles {100 * low:.2f} to {100 * high:.2f} %), "
          f"at most {100 * args.max_cost:.0f} % are allowed")
    return median


if __name__ == "__main__":
    sys.exit(main())

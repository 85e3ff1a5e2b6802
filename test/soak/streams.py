#!/usr/bin/env python3
"""Soak: many concurrent streams with random disconnects against a running server; nothing may leak or fail unasked.

  test/soak/streams.py http://127.0.0.1:8000 [--clients 64] [--seconds 60] [--seed 1]

Each client draws what it does next: read a stream to its end (then the protocol is checked), leave in the middle, leave
before the first byte, a whole answer, a malformed request, or a look at /v1/models. Afterwards the server's own counters must
say that nothing runs, waits or holds a KV block, and its descriptors and memory must be back. Exit code 0 if so.
Only Python's standard library is needed.
"""

import argparse
import http.client
import json
import random
import re
import socket
import sys
import threading
import time
import urllib.parse


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {}
        self.problems = []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def problem(self, text):
        with self.lock:
            self.problems.append(text)


def request_body(rng, stream):
    topics = ["Tell me a story.", "What is 12 + 30?", "你好！", "Sort: pear, apple, fig", "Say hello."]
    body = {
        "messages": [{"role": "user", "content": rng.choice(topics)}],
        "max_tokens": rng.choice([8, 24, 64]),
        "temperature": rng.choice([0, 0.7, 1.0]),
        "stream": stream,
    }
    if body["temperature"] > 0 and rng.random() < 0.2:
        body["n"] = 2
    if rng.random() < 0.2:
        body["stop"] = [".", "</think>"]
    if rng.random() < 0.2:
        body["logprobs"] = True
    return body


def check_stream(text, body, totals):
    events = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return totals.problem("stream without [DONE]: " + text[-200:])
    finished = {}
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            return totals.problem("error in a stream: " + event)
        for choice in chunk["choices"]:
            if choice["finish_reason"]:
                finished[choice["index"]] = finished.get(choice["index"], 0) + 1
    if finished != {i: 1 for i in range(body.get("n", 1))}:
        totals.problem(f"finish reasons: {finished}")


def one_round(rng, host, port, totals):
    action = rng.choices(
        ["stream", "leave", "leave early", "whole", "malformed", "models"], weights=[40, 25, 10, 15, 5, 5])[0]
    connection = http.client.HTTPConnection(host, port, timeout=120)
    try:
        if action == "models":
            connection.request("GET", "/v1/models")
        elif action == "malformed":
            connection.request("POST", "/v1/chat/completions", rng.choice(['{"messages":', "[]", '{"messages":[]}']),
                               {"Content-Type": "application/json"})
        else:
            body = request_body(rng, action != "whole")
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if action == "leave early":
                connection.sock.shutdown(socket.SHUT_RDWR)
                return totals.count(action)
        response = connection.getresponse()
        if action == "leave":
            response.read(rng.randint(1, 2000))
            return totals.count(action)
        text = response.read().decode()
        expected = 400 if action == "malformed" else 200
        if response.status != expected:
            # A full queue is an answer too; it says when to come back.
            if response.status == 429 and response.getheader("Retry-After"):
                return totals.count("429")
            return totals.problem(f"{action}: status {response.status}: {text[:200]}")
        if action == "stream":
            check_stream(text, body, totals)
        elif action == "whole" and len(json.loads(text)["choices"]) != body.get("n", 1):
            totals.problem("wrong number of choices: " + text[:200])
        totals.count(action)
    except Exception as error:  # whatever it is, the client did not ask for it
        totals.problem(f"{action}: {type(error).__name__}: {error}")
    finally:
        connection.close()


def metrics(host, port):
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()

    def value(name):
        found = re.search("^" + re.escape(name) + r"(?:\{[^}]*\})? ([0-9.e+-]+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else None

    return {
        "running": value("vllm:num_requests_running"),
        "waiting": value("vllm:num_requests_waiting"),
        "kv_blocks": value("spate:kv_blocks_used"),
        "fds": value("process_open_fds"),
        "rss_mb": value("process_resident_memory_bytes") / 1e6,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.base_url)
    print(f"soak: {args.clients} clients, {args.seconds:.0f} s, seed {args.seed}")

    totals = Totals()
    before = metrics(url.hostname, url.port)
    end = time.monotonic() + args.seconds

    def client(number):
        rng = random.Random(args.seed * 1000 + number)
        while time.monotonic() < end:
            one_round(rng, url.hostname, url.port, totals)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(args.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    after = metrics(url.hostname, url.port)
    for _ in range(100):
        if after["running"] == 0 and after["waiting"] == 0 and after["kv_blocks"] == 0:
            break
        time.sleep(0.1)
        after = metrics(url.hostname, url.port)
    print("soak: done:", ", ".join(f"{count} {what}" for what, count in sorted(totals.counts.items())))
    print("soak: before", before)
    print("soak: after ", after)
    for name in ("running", "waiting", "kv_blocks"):
        if after[name] != 0:
            totals.problem(f"{name} is {after[name]} when all clients have gone")
    if after["fds"] > before["fds"] + 8:
        totals.problem("descriptors are left open")
    for problem in totals.problems[:20]:
        print("soak: PROBLEM", problem)
    print("soak:", "ok" if not totals.problems else f"{len(totals.problems)} problems")
    return 1 if totals.problems else 0


if __name__ == "__main__":
    sys.exit(main())

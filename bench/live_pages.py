#!/usr/bin/env python3
"""What open web pages cost decode: tokens per second with N readers of /debug/live against none, in rounds that take turns.

  bench/live_pages.py BUILD_DIR [--model DIR] [--pages 20] [--streams 16] [--rounds 20] [--seconds 2] [--pin] [SERVE_FLAGS...]

Starts its own server. Decode runs all the time; the tokens are counted by the server (vllm:generation_tokens_total). --pin: the server on
the first core with one thread, the readers and clients on the last, so that the readers themselves cost the server nothing.
Prints medians and quartiles of the rounds: the ratio of tokens per second, and the CPU time that the server's threads other than those that
compute take more. The second hardly feels what else runs on the machine; with --pin it is what decode loses, as the threads share a core.
Only Python's standard library is needed.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import selectors
import socket
import statistics
import subprocess
import threading
import time

root = pathlib.Path(__file__).resolve().parents[1]
parser = argparse.ArgumentParser()
parser.add_argument("build")
parser.add_argument("--model", default="models/mini-qwen3")
parser.add_argument("--pages", type=int, default=20)
parser.add_argument("--streams", type=int, default=16)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--seconds", type=float, default=2)
parser.add_argument("--max-tokens", type=int, default=1500)
parser.add_argument("--pin", action="store_true")
args, flags = parser.parse_known_args()

cores = sorted(os.sched_getaffinity(0))
command = [str(pathlib.Path(args.build).resolve() / "spate"), "serve", args.model, "--port", "0", "--host", "127.0.0.1",
           "--disable-access-log", *flags]
if args.pin:
    os.sched_setaffinity(0, {cores[-1]})
    command += ["--threads", "1"]
server = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]} if args.pin else set(cores)))
log = []
for line in server.stderr:
    log.append(line)
    listening = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
    if listening:
        port = int(listening.group(1))
        break
else:
    raise SystemExit("the server did not start:\n" + "".join(log))
threading.Thread(target=lambda: log.extend(server.stderr), daemon=True).start()


def get(path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def num_tokens():
    """How many have been generated, and when that was."""
    text = get("/metrics")
    return sum(float(value) for value in re.findall(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)", text, re.MULTILINE)), time.monotonic()


def cpu_seconds():
    """Of each thread of the server, to the nanosecond."""
    times = {}
    for task in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        try:
            times[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:  # it has ended
            pass
    return times


num_computing = 1 if args.pin else len(cores)  # threads
is_over = threading.Event()


def keep_decoding(i):
    """One answer after the other, not streamed: what is measured is decode, not the streams of answers."""
    body = json.dumps({"prompt": f"Story {i}", "max_tokens": args.max_tokens, "ignore_eos": True, "temperature": 1, "seed": i})
    while not is_over.is_set():
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        except OSError:
            return


class Pages:
    """Readers of the live stream, as a browser's pages: each takes what comes and counts events."""

    def __init__(self, count):
        self.selector = selectors.DefaultSelector()
        self.num_events, self.num_bytes = [0] * count, 0
        for i in range(count):
            page = socket.create_connection(("127.0.0.1", port))
            page.sendall(b"GET /debug/live HTTP/1.1\r\nHost: x\r\n\r\n")
            page.setblocking(False)
            self.selector.register(page, selectors.EVENT_READ, i)

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                data = key.fileobj.recv(1 << 20)
                if not data:
                    raise SystemExit("a page's stream has ended")
                self.num_events[key.data] += data.count(b"data: {")
                self.num_bytes += len(data)

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()


def measure(num_pages):
    """Tokens per second of a round; CPU seconds per second of the server's threads but the one that computes; bytes that a page got."""
    pages = Pages(num_pages)
    pages.read(0.3)  # the full pictures are no part of it
    before, start, cpu = *num_tokens(), cpu_seconds()
    if num_pages:
        pages.read(args.seconds)
    else:
        time.sleep(args.seconds)
    after, end = num_tokens()
    used = sorted(time_ - cpu.get(thread, 0) for thread, time_ in cpu_seconds().items())[:-num_computing]
    pages.close()
    if num_pages and min(pages.num_events) < 2 * args.seconds:
        raise SystemExit(f"a page got {min(pages.num_events)} events in {args.seconds} s")
    return (after - before) / (end - start), sum(used) / (end - start), pages.num_bytes / max(1, num_pages)


try:
    for i in range(args.streams):
        threading.Thread(target=keep_decoding, args=(i,), daemon=True).start()
    while not re.search(r"^vllm:num_requests_running\{[^}]*\} " + str(args.streams) + "$", get("/metrics"), re.MULTILINE):
        time.sleep(0.1)
    measure(args.pages)
    ratios, cpu_more, off_rates, off_pairs = [], [], [], []
    for round_idx in range(args.rounds):  # off, on, on, off: a drift of the machine counts on both sides alike
        first_off, on, on_again, last_off = (measure(n) for n in (0, args.pages, args.pages, 0))
        off_rate = (first_off[0] + last_off[0]) / 2
        ratios.append((on[0] + on_again[0]) / 2 / off_rate)
        # What these threads do for a token is no cost of the pages.
        cpu_more.append((on[1] + on_again[1] - (first_off[1] + last_off[1]) * (on[0] + on_again[0]) / (2 * off_rate)) / 2)
        off_pairs.append(last_off[0] / first_off[0])
        off_rates.append(off_rate)
    def change(values, base=1):
        low, middle, high = (100 * (q - base) for q in statistics.quantiles(values, n=4))
        return f"{middle:+.2f} % (quartiles {low:+.2f} to {high:+.2f} %)"

    print(f"{args.model}, {args.streams} streams, {args.pages} pages, {args.rounds} rounds of 4 x {args.seconds:g} s: "
          f"{statistics.median(off_rates):.0f} tokens/s without pages")
    print(f"tokens/s with pages: {change(ratios)}; noise, the last against the first without pages: {change(off_pairs)}")
    print(f"CPU time of the threads that do not compute, more with pages: {change(cpu_more, 0)} of a core")
    print(f"a page got {on_again[2] / 1e3 / args.seconds:.1f} kB/s")
finally:
    is_over.set()
    server.kill()

#!/usr/bin/env python3
"""Load: many concurrent streams against `spate serve --device mock`, which says a token a step for each of them.

  test/soak/mock_streams.py build/spate [--streams 1000] [--step-ms 50] [--tokens 400] [--slow 20] [--max-p99-ms 20] [--max-growth-mb 64]

Every stream is due an event each step, so streams / step_ms is the rate of events. The mock's steps end at an even beat; the added
latency of an event is how much later it came than its stream's beat, which is set by the stream's earliest event. Slow readers read nothing until the others have ended.
Then SIGTERM comes while a second wave of streams runs: each must end with [DONE] and all of its tokens.
The measured streams are read by stream_client where it lies beside the program (an event costs Python some 15 us), else by this script.
Exit code 0 if all of it holds. Only Python's standard library is needed.
"""

import argparse
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

MODEL = "models/mini-qwen3"


def request_bytes(num_tokens):
    body = json.dumps({"prompt": "again and ", "max_tokens": num_tokens, "ignore_eos": True, "stream": True,
                       "return_token_ids": True}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class Stream:
    def __init__(self, port, num_tokens, receive_buffer=0):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(request_bytes(num_tokens))
        self.times = []  # of each event that has come
        self.tail = b""
        self.status = b""
        self.is_done = False

    def receive(self):
        """False at the end of the stream."""
        data = self.socket.recv(1 << 16)
        now = time.monotonic()
        if not self.status:
            self.status = data[:12]
        text = self.tail + data
        self.times += [now] * (text.count(b"\ndata: {") - self.tail.count(b"\ndata: {"))
        self.is_done |= b"data: [DONE]" in text
        self.tail = b"" if text.endswith(b"}\n\n\r\n") else text[-16:]  # behind a whole event nothing is in parts
        return bool(data)

    def problem(self, num_tokens):
        if not self.is_done or self.status != b"HTTP/1.1 200" or len(self.times) < num_tokens:
            return f"a stream with status {self.status!r}, {len(self.times)} of {num_tokens} events, done: {self.is_done}"
        return None


def read_all(streams, timeout):
    poll = select.epoll()  # the layer of selectors costs the client about 1 us an event
    open_streams = {stream.socket.fileno(): stream for stream in streams}
    for fd in open_streams:
        poll.register(fd, select.EPOLLIN)
    end = time.monotonic() + timeout
    while open_streams and time.monotonic() < end:
        for fd, _ in poll.poll(1):
            if not open_streams[fd].receive():
                open_streams.pop(fd).socket.close()
    poll.close()


class ReadStream:
    """What stream_client has read of a stream."""
    problem = Stream.problem

    def __init__(self, line):
        status, is_done, *times = line.split()
        self.status, self.is_done, self.times = b"HTTP/1.1 " + status.encode(), is_done == "1", [int(t) / 1e6 for t in times]


def measured_streams(args, port, timeout):
    """The streams and the CPU seconds of their client."""
    client = os.path.join(os.path.dirname(args.spate), "stream_client")
    if not os.path.exists(client):
        begin_cpu = time.process_time()
        streams = [Stream(port, args.tokens) for _ in range(args.streams)]
        read_all(streams, timeout)
        return streams, time.process_time() - begin_cpu
    said = subprocess.run([client, str(port), str(args.streams), str(timeout)], input=request_bytes(args.tokens), stdout=subprocess.PIPE,
                          check=True).stdout.decode().splitlines()
    return [ReadStream(line) for line in said[:-1]], float(said[-1])


def added_latencies(streams, step_s, num_tokens):
    """Of each event, in seconds: how much later than its stream's beat, start + n * step, it came. `start` is the earliest that
    an event of the stream allows."""
    latencies = []
    for stream in streams:
        offsets = [at - i * step_s for i, at in enumerate(stream.times[:num_tokens])]
        if not offsets:
            continue
        start = min(offsets)  # an engine that falls behind the beat adds latency too
        latencies += [offset - start for offset in offsets]
    return sorted(latencies)


def rate_of_all(streams, num_tokens):
    """Events a second while every stream runs: from the latest first event to the earliest last one."""
    begin, end = (choose(stream.times[i] for stream in streams) for choose, i in ((max, 0), (min, num_tokens - 1)))
    return sum(begin < at <= end for stream in streams for at in stream.times) / (end - begin)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024


def start_server(args, work, answer="again and ", flags=()):
    script = os.path.join(work, "mock.json")
    with open(script, "w") as file:
        json.dump({"step_ms": args.step_ms, "answers": [{"text": answer}]}, file)
    log = open(os.path.join(work, "log"), "w+")
    rows = str(args.streams + args.slow)
    server = subprocess.Popen([args.spate, "serve", MODEL, "--device", "mock", "--mock-script", script, "--port", "0",
                               "--max-num-seqs", rows, "--max-num-waiting", "4096", "--max-num-batched-tokens", "16384",
                               "--max-model-len", "1024", "--disable-access-log", *flags], stdout=log, stderr=log)
    for _ in range(400):
        log.seek(0)
        found = re.search(r"listening on http://127.0.0.1:(\d+)", log.read())
        if found:
            return server, int(found.group(1)), log
        time.sleep(0.05)
    log.seek(0)
    sys.exit("the server did not become ready:\n" + log.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("spate")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=50)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--max-p99-ms", type=float, default=20)
    parser.add_argument("--max-growth-mb", type=float, default=64)
    args = parser.parse_args()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    work = tempfile.mkdtemp()
    server, port, log = start_server(args, work)
    problems = []
    try:
        timeout = args.tokens * args.step_ms / 1000 * 3 + 60
        # A wave to fill the server's pools, then the one that is measured.
        warm_up = [Stream(port, 20) for _ in range(args.streams)]
        read_all(warm_up, timeout)
        before_mb = rss_mb(server.pid)
        slow = [Stream(port, args.tokens, receive_buffer=4096) for _ in range(args.slow)]
        begin, begin_cpu = time.monotonic(), cpu_seconds(server.pid)
        streams, client_cpu = measured_streams(args, port, timeout)
        cpu = cpu_seconds(server.pid) - begin_cpu
        seconds = max((stream.times[-1] for stream in streams if stream.times), default=time.monotonic()) - begin
        after_mb = rss_mb(server.pid)
        problems += filter(None, (stream.problem(args.tokens) for stream in streams))
        num_events = sum(len(stream.times) for stream in streams)
        latencies = added_latencies(streams, args.step_ms / 1000, args.tokens)
        p50, p99 = (1000 * latencies[int(len(latencies) * share)] if latencies else -1 for share in (0.5, 0.99))
        print(f"{args.streams} streams, {args.slow} slow readers: {num_events / seconds:.0f} events/s, added latency p50 {p50:.1f} ms, "
              f"p99 {p99:.1f} ms, RSS {before_mb:.0f} -> {after_mb:.0f} MB")
        if not problems:
            print(f"while all of them run: {rate_of_all(streams, args.tokens):.0f} events/s; CPU an event: "
                  f"server {1e6 * cpu / num_events:.1f} us, client {1e6 * client_cpu / num_events:.1f} us")
        if p99 > args.max_p99_ms:
            problems.append(f"p99 of the added latency is {p99:.1f} ms, at most {args.max_p99_ms:.1f} are allowed")
        if after_mb - before_mb > args.max_growth_mb:
            problems.append(f"memory grew by {after_mb - before_mb:.1f} MB")
        read_all(slow, timeout)
        problems += filter(None, (stream.problem(args.tokens) for stream in slow))

        num_tokens = args.tokens // 2
        last = [Stream(port, num_tokens) for _ in range(args.streams)]
        wait_until_running(port, args.streams)
        server.send_signal(signal.SIGTERM)
        read_all(last, timeout)
        problems += filter(None, (stream.problem(num_tokens) for stream in last))
        code = server.wait(60)
        print(f"SIGTERM with {args.streams} streams running: exit code {code}")
        if code != 0:
            problems.append(f"the server ended with code {code}")
    finally:
        server.kill()
        server.wait()
    for problem in sorted(set(problems)):
        print("problem:", problem)
    if problems:
        log.seek(0)
        print(log.read()[-2000:])
    return 1 if problems else 0


def wait_until_running(port, num):
    """All requests are in: running or waiting."""
    for _ in range(600):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/load", timeout=30) as response:
            if json.load(response)["server_load"] >= num:
                return
        time.sleep(0.01)
    raise SystemExit("the streams did not begin")


if __name__ == "__main__":
    sys.exit(main())

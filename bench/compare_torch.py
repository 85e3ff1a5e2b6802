#!/usr/bin/env python3
"""PyTorch's kernels beside ours: products by cuBLAS, attention by FlashAttention and cuDNN, at the sizes of a model.

Runs where PyTorch and a GPU are. Rounds alternate: `spate bench kernel MODEL --device cuda`, then the same sizes in
PyTorch, then the other way round, so that a slow minute meets both. Prints, for each row that both have, the median
microseconds of a call, our rate, the lowest and the highest ratio of a round (above 1: ours is faster), and writes all of it.

    bench/compare_torch.py bench/configs/llama-3.1-8b --rounds 5 --output-json build/compare_torch.json

Both sides time a chain of calls whose operands come from memory (256 MB of copies taken by turns), PyTorch in a CUDA
graph, ours launch by launch. Decode attention of PyTorch reads contiguous keys, ours the blocks of a paged cache.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

COLD_BYTES = 256 << 20
MEASURE_SECONDS = 0.3  # of a row, as ours: at its power limit a GPU slows down within some 50 ms
LINEAR = re.compile(r"cuda/linear/bf16/(?P<what>[\w-]+?)-(?P<out>\d+)x(?P<in>\d+)/m(?P<m>\d+)$")
DECODE = re.compile(r"cuda/attention_paged/bf16/decode-(?P<keys>\d+)/batch(?P<batch>\d+)$")
PREFILL = re.compile(r"cuda/attention_paged/bf16/prefill-(?P<keys>\d+)/(?P<queries>\d+)$")


def bench_ours(arguments):
    """Name of a row -> row of `spate bench kernel`."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.json"
        command = [arguments.spate, "bench", "kernel", arguments.model, "--device", "cuda", "--output-json", str(path)]
        if arguments.filter:
            command += ["--filter", arguments.filter]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {row["name"]: row for row in json.loads(path.read_text()) if row.get("time_us")}


def microseconds(call, num_copies):
    """Median of a call in a CUDA graph of a chain of them; call(i) takes the i-th copy of the operands."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(3):
            call(i % num_copies)
    torch.cuda.synchronize()
    chain = max(num_copies, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(chain):
            call(i % num_copies)
    times, begin = [], time.monotonic()
    while len(times) < 7 or time.monotonic() - begin < MEASURE_SECONDS:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / chain)
    return statistics.median(times[1:])


def copies_of(num_bytes):
    return max(1, min(256, COLD_BYTES // num_bytes))


def bench_linear(match):
    """F.linear of bf16: cuBLAS."""
    rows, width, m = int(match["out"]), int(match["in"]), int(match["m"])
    count = copies_of(2 * rows * width)
    weights = [torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    x = torch.randn(m, width, device="cuda", dtype=torch.bfloat16)
    return {"cuBLAS": microseconds(lambda i: F.linear(x, weights[i]), count)}


def bench_attention(batch, queries, keys, heads):
    """Back-end -> microseconds; causal, aligned to the last key."""
    num_heads, num_kv_heads, head_dim = heads
    count = copies_of(4 * batch * keys * num_kv_heads * head_dim)

    def make(tokens, num):
        return torch.randn(batch, num, tokens, head_dim, device="cuda", dtype=torch.bfloat16) * 0.3

    cache = [(make(keys, num_kv_heads), make(keys, num_kv_heads)) for _ in range(count)]
    q = make(queries, num_heads)
    arms = {}
    for name, backend in (("FlashAttention", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):

        def call(i, backend=backend):
            k, v = cache[i]
            with sdpa_kernel(backend):
                if queries == keys:
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                mask = causal_lower_right(queries, keys) if queries > 1 else None
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

        try:
            arms[name] = microseconds(call, count)
        except RuntimeError as error:  # a back-end that does not take this shape
            print(f"{name} does not run {batch} x {queries} of {keys}: {str(error).splitlines()[0]}", file=sys.stderr)
    return arms


def bench_torch(name, heads):
    """Arms of PyTorch for a row of ours; none where it has no such kernel."""
    if match := LINEAR.match(name):
        return bench_linear(match)
    if match := DECODE.match(name):
        return bench_attention(int(match["batch"]), 1, int(match["keys"]), heads)
    if match := PREFILL.match(name):
        return bench_attention(1, int(match["queries"]), int(match["keys"]), heads)
    return {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--spate", default="build/spate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--output-json", default="")
    arguments = parser.parse_args()
    config = json.loads((pathlib.Path(arguments.model) / "config.json").read_text())
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    heads = (num_heads, config["num_key_value_heads"], head_dim)

    ours, theirs = {}, {}  # name -> a row or a time each round
    for i in range(arguments.rounds):
        if i % 2 == 0:
            rows = bench_ours(arguments)
        names = list(ours) or [name for name in rows if LINEAR.match(name) or DECODE.match(name) or PREFILL.match(name)]
        for name in names:
            for arm, time_us in bench_torch(name, heads).items():
                theirs.setdefault((name, arm), []).append(time_us)
            torch.cuda.empty_cache()
        if i % 2 == 1:
            rows = bench_ours(arguments)
        for name in names:
            ours.setdefault(name, []).append(rows[name])

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {arguments.rounds} rounds")
    results = []
    for (name, arm), times in theirs.items():
        rows = ours[name]
        ratios = [time_us / row["time_us"] for row, time_us in zip(rows, times)]
        results.append({
            "name": name, "peer": arm, "time_us": statistics.median(row["time_us"] for row in rows),
            "peer_time_us": statistics.median(times), "value": statistics.median(row["value"] for row in rows),
            "unit": rows[0]["unit"], "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)})
        r = results[-1]
        print(f"{name:55} {r['time_us']:10.1f} us {r['value']:9.0f} {r['unit']:8} {arm:15}{r['peer_time_us']:10.1f} us"
              f"  ratio {r['ratio']:.2f} ({r['lowest']:.2f} to {r['highest']:.2f})")
    if arguments.output_json:
        pathlib.Path(arguments.output_json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

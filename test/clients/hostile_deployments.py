#!/usr/bin/env python3
"""`spate run` under bad files, bad engines, signals at any moment and many requests; the tracer under bad collectors.

hostile_deployments.py BUILD_DIR     starts deployments and collectors of its own on free ports of loopback
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from checks import check, exit_code, program, root, wait_for

folder = tempfile.TemporaryDirectory()
file = pathlib.Path(folder.name) / "deploy.yaml"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


# ---- files ----

def deployment(engine="model: models/mini-qwen3", more="", gateway="{port: 8000}"):
    return f"engines:\n  - {{serve_id: a, {engine}}}\ngateway: {gateway}\n{more}"


def graph(step):
    return deployment(more=f"graphs:\n  - {{name: g, steps: [{{id: s, prompt: x, {step}}}]}}\n")


def bomb(key):
    lines = ["    x0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"    x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    return deployment(more=f"{key}:\n" + "\n".join(lines) + "\n")


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


for name, text, wanted in [
    ("an alias of itself", "&a\nengines: [{model: x}]\ncommon: *a\n", "nested deeper than 64 levels, or an alias of itself"),
    ("aliases that grow tenfold with each line", bomb("common"), "more than 100000 values"),
    ("a key that is a list", "? [1]\n: 2\n", ":1: a key must be a text"),
    ("two documents", deployment() + "---\nengines: 5\n", ":5: a second document"),
    ("a NUL", deployment('model: "models/mini-qwen3\\0"'), ":2: a text with a NUL"),
    ("a name of two lines", deployment('model: models/mini-qwen3, serve_id: "b\\nc"').replace("serve_id: a, ", ""), "no control characters"),
    ("a graph's name that colours the terminal", deployment(more='graphs: [{name: "\\e[31m", steps: [{id: s, prompt: x}]}]'), ":4: the name"),
    ("an empty value, which would take the next flag for its own", deployment("model: ''"), ":2: 'model' has an empty value"),
    ("a key that is two flags", deployment("model: models/mini-qwen3, 'threads=1 --x': 1"), "is no name of a flag"),
    ("a folder without a model", deployment("model: /"), ":2: "),
    ("two models in a list", deployment("model: [a, b]"), ":2: --model: a and b are two models"),
    ("a port of all engines", "common: {port: 5}\n" + deployment(), ":1: 'port' belongs to each engine"),
    ("a variable without a name", deployment('model: models/mini-qwen3, environment: {"A=B": c}'), "is no name of a variable"),
    ("a variable that is a mapping", deployment("model: models/mini-qwen3, environment: {A: {b: c}}"), "'A' takes a text"),
    ("cores as a list", deployment("model: models/mini-qwen3, cores: [0]"), ":2: 'cores' takes a text"),
    ("a key that is empty, so the gateway is open", deployment(gateway="{port: 8000, api_key: ''}"), ":3: 'api_key' is empty"),
    ("a key that is nothing", deployment(gateway="{port: 8000, api_key: }"), ":3: 'api_key' is empty"),
    ("a port beyond all numbers", deployment("model: models/mini-qwen3, port: 1e400"), "from 1 to 65535, got 1e400"),
    ("a time-out that is no number", graph("timeout: .nan"), "'timeout' takes a number"),
    ("braces without end", "engines: " + "{a: [" * 20000, "deploy.yaml:1: "),
    ("TLS, which the gateway does not speak", deployment("model: models/mini-qwen3, ssl_certfile: a.pem"), ":2: engines are reached by plain HTTP"),
    ("a model's folder without a name", deployment("model: ///").replace("serve_id: a, ", ""), ":2: the name of a model has 1 to"),
    ("keys that the gateway does not have", deployment("model: models/mini-qwen3, api_key_file: keys"), ":2: the gateway cannot ask engine a"),
    ("parentheses without end", graph("when: '" + "(" * 20000 + "'"), "when: "),
]:
    file.write_text(text)
    start = time.monotonic()
    try:
        bad = subprocess.run([program, "run", str(file), "--dry-run"], cwd=root, capture_output=True, text=True, timeout=20,
                             preexec_fn=limit_memory)
        seen = f"code {bad.returncode} after {time.monotonic() - start:.1f} s: {bad.stderr[:300]}"
        is_right = bad.returncode == 1 and wanted in bad.stderr and "deploy.yaml:" in bad.stderr and time.monotonic() - start < 5
    except subprocess.TimeoutExpired:
        is_right, seen = False, "no end"
    check(f"{name}: refused with its place", is_right, seen)


# ---- processes ----

def start(text, **variables):
    file.write_text(text)
    run = subprocess.Popen([program, "run", str(file)], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, **variables},
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # nohup, which started this, ignores it
    run.log = []
    run.reader = threading.Thread(target=lambda: run.log.extend(run.stderr), daemon=True)
    run.reader.start()
    return run


def leftovers(run):
    run.reader.join(5)
    pids = re.findall(r": process (\d+)", "".join(run.log))
    wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), 5)
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


def call(port, path, body=None, timeout=60, key=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


mock = "common: {device: mock, model: models/mini-qwen3}\n"
taken = socket.create_server(("127.0.0.1", 0))  # its port is no engine's any more
run = start(mock + f"engines:\n  - {{serve_id: a, port: {taken.getsockname()[1]}}}\nrestart: {{first_delay: 0.05, max_restarts: 3}}\n")
code = run.wait(60)
check("an engine that ends at once is started again, then given up: code 1",
      code == 1 and "started 4 times in a row, given up" in "".join(run.log) and not leftovers(run), f"{code} {''.join(run.log)}")
check("and its own words are in the log", "port" in "".join(line for line in run.log if "[a]" in line), "".join(run.log))
taken.close()

port = free_port()
text = mock + f"engines:\n  - {{serve_id: a, port: {free_port()}}}\n  - {{serve_id: b, port: {free_port()}}}\ngateway: {{port: {port}}}\n"
rng = random.Random(1)
codes, left = [], []
for _ in range(8):
    run = start(text)
    time.sleep(rng.random() * 0.6)
    run.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
    codes.append(run.wait(30))
    left += leftovers(run)
# Before its signals are its own, a signal ends it as it ends any program.
check("a signal at any moment ends it, with 0 once it has begun, and no process is left",
      not left and all(c in (0, -signal.SIGTERM, -signal.SIGINT) for c in codes) and codes.count(0) >= 4, f"{codes} {left}")

def sockets_of(pid):
    """The inodes of a process's sockets."""
    links = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except OSError:  # closed meanwhile
            pass
    return {link for link in links if link.startswith("socket:")}


run = start(text.replace("engines:", "restart: {first_delay: 0.05, health_interval: 0.05}\nengines:").replace(
    "serve_id: b,", "serve_id: b, environment: {SPATE_API_KEY: of-b, MY_TOKEN: hush},"), SPATE_API_KEY="of-all")
try:
    wait_for(lambda: call(port, "/health")[0] == 200)
    ask = lambda model, key: call(port, "/v1/completions", {"model": model, "prompt": "x", "max_tokens": 2}, key=key)[0]
    seen = [ask(model, key) for model in "ab" for key in ("of-all", "of-b", None)]
    check("the environment's key closes gateway and engines, an engine may have its own", seen == [200, 401, 401] * 2, seen)
    log = "".join(run.log)
    check("keys are not in the log", "SPATE_API_KEY=(set)" in log and not any(word in log for word in ("of-all", "of-b", "hush")), log)
    client = socket.create_connection(("127.0.0.1", port))
    pids = lambda: re.findall(r"b: process (\d+)", "".join(run.log))
    os.kill(int(pids()[0]), signal.SIGKILL)
    wait_for(lambda: len(pids()) == 2 and call(port, "/health")[0] == 200)
    shared = sockets_of(run.pid) & sockets_of(pids()[1])
    check("an engine that is started again holds no socket of the gateway", not shared, shared)
    client.close()
    for _ in range(50):
        run.send_signal(signal.SIGUSR1)
    told = lambda: {line[1] for line in run.log if "[state]" in line and line[0] == "["}
    check("SIGUSR1 is passed on to the engines", wait_for(lambda: told() == {"a", "b"}, 10) and run.poll() is None, told())
    run.send_signal(signal.SIGHUP)
    check("SIGHUP drains as SIGTERM does", run.wait(30) == 0 and not leftovers(run), "".join(run.log[-5:]))
finally:
    run.kill()
hung_up = subprocess.Popen(["nohup", program, "run", str(file)], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
for line in hung_up.stderr:
    if "gateway listening" in line:
        break
hung_up.send_signal(signal.SIGHUP)
time.sleep(0.5)
is_there = hung_up.poll() is None
hung_up.send_signal(signal.SIGTERM)
check("under nohup SIGHUP is ignored", is_there and hung_up.communicate(timeout=30) and hung_up.returncode == 0, hung_up.returncode)

text += """graphs:
  - name: g
    timeout: 60
    steps:
      - {id: first, engine: a, prompt: "{{ input }}"}
      - {id: each, engine: b, map: "[1, 2, 3, 4]", prompt: "{{ item }} {{ steps.first.text }}", max_parallel: 4, retries: 5}
      - {id: last, engine: a, prompt: "{{ steps.each.texts | length }} of {{ input }}", retries: 5}
"""
run = start(text)
try:
    wait_for(lambda: call(port, "/health")[0] == 200)
    ask = lambda i: call(port, "/v1/chat/completions", {"model": "g", "stream": i % 3 == 0, "messages": [{"role": "user", "content": f"q{i}"}]})
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, range(1000)))
    wrong = [f"{i}: {status} {text[:200]}" for i, (status, text) in enumerate(answers)
             if status != 200 or (f"4 of q{i}" if i % 3 else "[DONE]") not in text]
    check("1000 requests to a graph of 6 calls, 64 at once: all are answered", not wrong, wrong[:3])
    check("the engines have not been started again", all(e["restarts"] == 0 for e in json.loads(call(port, "/engines")[1])["engines"]))
    for name, body in [("numbers", 5), ("a model of another type", {"model": 5}), ("messages of text", {"model": "g", "messages": "x"}),
                       ("parts of numbers", {"model": "g", "messages": [{"role": "user", "content": [5]}]}),
                       ("a stream of text", {"model": "g", "stream": "yes", "messages": [{"role": "user", "content": "x"}]}),
                       ("options of numbers", {"model": "a", "stream_options": 5, "messages": [{"role": "user", "content": "x"}]})]:
        status, text = call(port, "/v1/chat/completions", body)
        check(f"{name}: an error of the client", 400 <= status < 500 and "error" in text, f"{status} {text}")
    run.send_signal(signal.SIGTERM)
    check("then SIGTERM ends it with 0", run.wait(60) == 0 and not leftovers(run), "".join(run.log[-5:]))
finally:
    run.kill()


# ---- collectors ----

def collector(behave):
    """A listener whose connections `behave` treats, each on a thread."""
    listener = socket.create_server(("127.0.0.1", 0))


    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return

            threading.Thread(target=treat, args=(connection,), daemon=True).start()

    def treat(connection):
        try:
            behave(connection)
        except OSError:
            pass
        connection.close()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def flood(start):
    def behave(connection):
        connection.recv(1 << 16)
        connection.sendall(start)
        while True:
            connection.sendall(b"x" * 65536)
    return behave


def answer(bytes_):
    def behave(connection):
        connection.recv(1 << 20)
        connection.sendall(bytes_)
    return behave


def drip(connection):
    for byte in b"HTTP/1.1 200 OK\r\n" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def resident_mib(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def run_traced(name, endpoint):
    server = subprocess.Popen([program, "serve", "models/mini-qwen3", "--device", "mock", "--port", "0", "--otlp-traces-endpoint", endpoint],
                              cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        log = []
        for line in server.stderr:
            log.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                break
        reader = threading.Thread(target=lambda: log.extend(server.stderr), daemon=True)
        reader.start()
        before, slowest, failed = resident_mib(server.pid), 0, 0
        for _ in range(100):
            begin = time.monotonic()
            status, _ = call(found.group(1), "/v1/completions", {"prompt": "a", "max_tokens": 2})
            slowest, failed = max(slowest, time.monotonic() - begin), failed + (status != 200)
        time.sleep(1.5)
        grown = resident_mib(server.pid) - before
        begin = time.monotonic()
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
        took = time.monotonic() - begin
        reader.join(5)
        is_told = "traces are lost" in "".join(log)
        return (f"{name}: requests go on, nothing grows, the end comes and the loss is told",
                code == 0 and failed == 0 and slowest < 1 and grown < 64 and took < 8 and is_told,
                f"code {code}, {failed} failed, slowest {slowest:.2f} s, {grown:.0f} MiB more, ended after {took:.1f} s\n{''.join(log[-4:])}")
    finally:
        server.kill()


cases = {"refuses": None, "answers 500": answer(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"), "never answers": lambda c: time.sleep(60),
         "sends a byte now and then": drip, "sends a head without end": flood(b"HTTP/1.1 200 OK\r\n"),
         "sends a body without end": flood(b"HTTP/1.1 500 No\r\n\r\n"), "sends one chunk line without end": flood(
             b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n"), "closes at once": lambda c: None,
         "speaks another protocol": answer(b"SSH-2.0-x\r\n\r\n"), "redirects": answer(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")}
with concurrent.futures.ThreadPoolExecutor(5) as pool:
    running = []
    for name, behave in cases.items():
        target = free_port() if behave is None else collector(behave).getsockname()[1]
        running.append(pool.submit(run_traced, f"a collector that {name}", f"http://127.0.0.1:{target}/v1/traces"))
    for each in running:
        check(*each.result())
for endpoint in ["http://127.0.0.1:4318x", "http://127.0.0.1:99999", "http://a b:1", "http://me@h:1", "ftp://h", "http://h:1/a\r\nX: y"]:
    refused = subprocess.run([program, "serve", "models/mini-qwen3", "--otlp-traces-endpoint", endpoint], cwd=root, capture_output=True,
                             text=True, timeout=20)
    check(f"the endpoint {endpoint!r} is refused", refused.returncode == 1 and "--otlp-traces-endpoint" in refused.stderr, refused.stderr)
sys.exit(exit_code())

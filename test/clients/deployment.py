#!/usr/bin/env python3
"""`spate run`: two engines and a graph of three steps over them, through the gateway; an engine that dies comes back.

deployment.py BUILD_DIR     starts a deployment on free ports of loopback; with the package openai its client is used too
"""
import json
import os
import pathlib
import re
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

def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def call(path, body=None, timeout=60):
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError as error:
        return 0, str(error)


def ask(model, text, **fields):
    return call("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields})


def text_of(answer):
    return json.loads(answer[1])["choices"][0]["message"]["content"] if answer[0] == 200 else str(answer)


ports = free_ports(3)
url = f"http://127.0.0.1:{ports[2]}"
text = f"""
common: {{device: cpu, kv_cache_memory: 64M, max_model_len: 1024}}
engines:
  - {{serve_id: small, model: models/mini-qwen3, port: {ports[0]}}}
  - {{serve_id: experts, model: models/mini-ernie, port: {ports[1]}}}
gateway: {{port: {ports[2]}}}
restart: {{first_delay: 0.1, health_interval: 0.1}}
graphs:
  - name: sums
    steps:
      - {{id: first, engine: small, prompt: "{{{{ input }}}}", request: {{temperature: 0, max_tokens: 64}}}}
      - {{id: each, engine: experts, map: "[2, 3, 4]", prompt: "What is {{{{ item }}}} + 3?", max_parallel: 2,
         request: {{temperature: 0, max_tokens: 64}}}}
      - {{id: other, engine: small, after: each, when: steps.first.text == "", prompt: "never asked"}}
      - {{id: answer, engine: small, after: each, prompt: "Reverse the word: {{{{ steps.each.texts | length }}}}",
         request: {{max_tokens: 64}}}}
"""
folder = tempfile.TemporaryDirectory()
file = pathlib.Path(folder.name) / "deploy.yaml"
file.write_text(text)
dry = subprocess.run([program, "run", str(file), "--dry-run"], cwd=root, capture_output=True, text=True)
check("--dry-run prints the plan",
      dry.returncode == 0 and "engine small" in dry.stdout and "each on experts, after first" in dry.stdout,
      dry.stdout + dry.stderr)
for name, old, new, wanted in [
    ("an unknown key", "restart:", "restrat:", ":7: a deployment has no key 'restrat'; the nearest is 'restart'"),
    ("an unknown flag", "max_model_len", "max_modell_len", ":2: there is no flag --max-modell-len; the nearest is --max-model-len"),
    ("a port twice", str(ports[1]), str(ports[0]), f":5: port {ports[0]} stands at deploy.yaml:4 already"),
    ("a missing model", "models/mini-ernie", "models/mini-erni", ":5: "),
    ("a cycle", "after: each, when", "after: other, when", ": the steps other wait for each other"),
    ("a step that is not there", "after: each, when", "after: eahc, when", "comes after 'eahc', which is not there; the nearest is 'each'"),
    ("an engine that is not there", "engine: experts", "engine: expert", "which is not there; the nearest is 'experts'"),
    ("a broken template", "{{ item }}", "{{ item }", ":12: prompt: line 1"),
]:
    file.write_text(text.replace(old, new, 1))
    bad = subprocess.run([program, "run", str(file), "--dry-run"], cwd=root, capture_output=True, text=True)
    check(f"{name} is named with its place",
          bad.returncode != 0 and "deploy.yaml:" in bad.stderr and wanted in bad.stderr,
          bad.stderr)
file.write_text(text)

log = []
run = subprocess.Popen([program, "run", str(file)], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
try:
    threading.Thread(target=lambda: log.extend(run.stderr), daemon=True).start()
    check("the engines become ready", wait_for(lambda: call("/health")[0] == 200, 60), "".join(log))
    names = [model["id"] for model in json.loads(call("/v1/models")[1])["data"]]
    check("graph and engines are models", names == ["sums", "small", "experts"], str(names))
    answer = ask("small", "What is 2 + 3?")
    check("an engine is reached by its name", "5" in text_of(answer), text_of(answer))
    answer = ask("sums", "What is 2 + 3?")
    body = json.loads(answer[1])
    check("a graph of three steps over two models answers",
          answer[0] == 200 and text_of(answer) and body["model"] == "sums",
          str(answer))
    check("its tokens are the sum of its steps", body["usage"]["prompt_tokens"] > 60, str(body["usage"]))
    alone = ask("small", "Reverse the word: 3", max_tokens=64)
    check("its last step is the same question alone",
          text_of(alone) == text_of(answer),
          f"{text_of(alone)} != {text_of(answer)}")
    streamed = ask("sums", "What is 2 + 3?", stream=True, stream_options={"include_usage": True})[1]
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    joined = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    check("streamed it is the same",
          joined == text_of(answer) and chunks[-1]["usage"] == body["usage"] and len(chunks) > 3,
          streamed)
    wrong = ask("nothing", "hi")
    check("an unknown model is a 404 with the names", wrong[0] == 404 and "sums" in wrong[1], str(wrong))
    wrong = call("/v1/chat/completions", {"model": "sums", "messages": [{"role": 1}]})
    check("messages of another type are a 400", wrong[0] == 400 and "messages" in wrong[1], str(wrong))
    try:
        import openai
    except ImportError:
        print("not run: the OpenAI client (openai is not installed)", flush=True)
    else:
        client = openai.OpenAI(base_url=url + "/v1", api_key="none")
        seen = client.chat.completions.create(model="sums", messages=[{"role": "user", "content": "What is 2 + 3?"}], temperature=0)
        stream = client.chat.completions.create(model="sums", messages=[{"role": "user", "content": "What is 2 + 3?"}],
                                                temperature=0, stream=True)
        parts = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        check("through the OpenAI client, whole and streamed",
              seen.choices[0].message.content == parts == text_of(answer),
              f"{seen} {parts}")

    pid = int(re.search(r"experts: process (\d+)", "".join(log)).group(1))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: call("/health")[0] == 503)
    during = ask("sums", "What is 2 + 3?")
    back = wait_for(lambda: call("/health")[0] == 200)
    states = json.loads(call("/engines")[1])["engines"]
    check("an engine that is killed comes back",
          back and states[1]["restarts"] == 1 and states[0]["restarts"] == 0,
          f"{states}")
    check("meanwhile its graph says why it fails, or waits", during[0] in (200, 503), str(during))
    check("and the graph answers again", text_of(ask("sums", "What is 2 + 3?")) == text_of(answer), "another answer")

    last = []
    running = threading.Thread(target=lambda: last.append(ask("small", "Sort: 5 3 8 1", max_tokens=700, ignore_eos=True)))
    running.start()
    time.sleep(0.3)
    run.send_signal(signal.SIGTERM)
    code = run.wait(60)
    running.join(60)
    check("SIGTERM drains: what runs ends first", code == 0 and last and last[0][0] == 200, f"code {code}, {last}")
    ends = [line for line in log if "ended with code" in line]
    check("and the engines end in the reverse order",
          len(ends) == 2 and "experts" in ends[0] and "small" in ends[1] and all("code 0" in end for end in ends),
          "".join(ends))
    alive = [p for p in re.findall(r"process (\d+)", "".join(log)) if pathlib.Path(f"/proc/{p}").exists()]
    check("no process is left", not alive, str(alive))
finally:
    if run.poll() is None:
        run.kill()
sys.exit(exit_code())

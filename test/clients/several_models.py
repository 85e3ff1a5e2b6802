#!/usr/bin/env python3
"""Two models in one process under load: one is unloaded and loaded again, and no request of the other is lost.

several_models.py BUILD_DIR     starts its own server on a free port of loopback
"""
import concurrent.futures
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from checks import exit_code, program, report, root

def call(path, body=None, key="secret", timeout=60):
    """Status and text of an answer; a body makes it a POST."""
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def chat(model, stream=False, max_tokens=48):
    return call("/v1/chat/completions", {"model": model, "stream": stream, "max_tokens": max_tokens, "temperature": 0,
                                         "ignore_eos": True, "messages": [{"role": "user", "content": "Sort: 5 3 8 1"}]})


server = subprocess.Popen([program, "serve", "models/mini-qwen3", "--device", "cpu", "--port", "0", "--host", "127.0.0.1",
                           "--api-key", "secret", "--enable-admin", "--kv-cache-memory", "64M",
                           "--model", "ernie=models/mini-ernie,kv-cache-memory=64M,alias=experts"],
                          cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
try:
    log, url = [], ""
    for line in server.stderr:
        log.append(line)
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        url = url or (found.group(0) if found else "")
        if url and call("/health")[0] == 200:
            break
    threading.Thread(target=lambda: log.extend(server.stderr), daemon=True).start()

    names = [model["id"] for model in json.loads(call("/v1/models")[1])["data"]]
    report("both models and the alias are listed", "" if names == ["mini-qwen3", "ernie", "experts"] else str(names))
    status, text = chat("nobody")
    is_named = status == 404 and "mini-qwen3" in text and "ernie" in text
    report("an unknown model is a 404 that names those there are", "" if is_named else text)
    first = {name: json.loads(chat(name)[1])["choices"][0]["message"]["content"] for name in ("mini-qwen3", "experts")}

    stop, problems, num_streams = threading.Event(), [], 0
    lock = threading.Lock()

    def keep_streaming():
        global num_streams
        while not stop.is_set():
            status, text = chat("mini-qwen3", stream=True)
            whole = status == 200 and text.rstrip().endswith("data: [DONE]") and '"finish_reason":"length"' in text
            with lock:
                num_streams += 1
                if not whole:
                    problems.append(f"{status} {text[-200:]}")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(keep_streaming)
        steps = []  # the requests that run on the model end before it goes
        for _ in range(3):
            asked = threading.Thread(target=lambda: steps.append(("asked", chat("ernie", stream=True))))
            asked.start()
            time.sleep(0.05)
            steps.append(("unload", call("/admin/models/unload", {"name": "ernie"})))
            asked.join()
            steps.append(("gone", chat("ernie")))
            steps.append(("load", call("/admin/models/load", {"name": "ernie", "path": "models/mini-ernie", "alias": "experts",
                                                              "kv-cache-memory": "64M"})))
            steps.append(("back", chat("experts")))
        stop.set()
    expected = {"asked": 200, "unload": 200, "gone": 404, "load": 200, "back": 200}
    wrong = [f"{name}: {status} {text[:300]}" for name, (status, text) in steps if status != expected[name]]
    report("a model is unloaded and loaded three times while the other answers", "; ".join(wrong))
    cut = [text for name, (_, text) in steps if name == "asked" and not text.rstrip().endswith("data: [DONE]")]
    report("what ran on it ended first", cut[0][-200:] if cut else "")
    same = all(json.loads(text)["choices"][0]["message"]["content"] == first["experts"]
               for name, (status, text) in steps if name == "back" and status == 200)
    report("it answers as before", "" if same else "another text")
    if num_streams < 8:
        problems.append("too few ran")
    report(f"none of {num_streams} streams of the other model was lost", problems[0] if problems else "")

    metrics = call("/metrics")[1]
    missing = [name for name in ("mini-qwen3", "ernie") if f'vllm:generation_tokens_total{{model_name="{name}"' not in metrics]
    report("metrics have a series for each model", f"none of {', '.join(missing)}" if missing else "")
    status, text = call("/admin/models/load", {"name": "big", "path": "models/mini-qwen3", "kv-cache-memory": "900G"})
    report("what does not fit is refused with the numbers", "" if status == 409 and "GiB" in text else f"{status} {text}")
    status, text = call("/admin/models/unload", {"name": "ernie"}, key="wrong")
    report("no key, no unload", "" if status == 401 else f"{status} {text}")

    server.send_signal(signal.SIGTERM)
    code = server.wait(30)
    report("SIGTERM ends it with 0", "" if code == 0 else f"code {code}: {''.join(log[-5:])}")
finally:
    server.kill()
sys.exit(exit_code())

#!/usr/bin/env python3
"""Who may reach a server, and what an administrator may do with its model: HTTPS, keys kept as hashes, sleep and wake-up.

access.py BUILD_DIR     starts servers of its own on free ports of loopback; needs the program openssl for a certificate
"""
import concurrent.futures
import hashlib
import http.client
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

from checks import check, exit_code, program, root

folder = tempfile.TemporaryDirectory(prefix="spate-access-")
work = pathlib.Path(folder.name)


def start(*flags):
    server = subprocess.Popen([program, "serve", "models/mini-qwen3", "--port", "0", *flags], cwd=root, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.search(r"listening on (https?)://127\.0\.0\.1:(\d+)", line)
        if found:
            return server, found[1], int(found[2])
    raise SystemExit(f"the server ended with {server.wait()}")


def stop(server):
    server.terminate()
    begin = time.monotonic()
    code = server.wait(timeout=40)
    return code, time.monotonic() - begin


def refusal(*flags):
    done = subprocess.run([program, "serve", "models/mini-qwen3", "--port", "0", "--device", "mock", *flags], cwd=root, capture_output=True,
                          text=True, timeout=60)
    return done.stderr if done.returncode else ""


def call(connection, method, path, body=None, key=None):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


# --- keys as hashes, sleep ------------------------------------------------------------------------------------------------
keys = work / "keys"
keys.write_text("# the team\n" + "".join(hashlib.sha256(key.encode()).hexdigest() + f"  {key[0]}\n" for key in ("first-key", "second-key")))
server, scheme, port = start("--device", "cpu", "--api-key-file", str(keys), "--enable-admin", "--max-model-len", "512")
try:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    chat = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8, "temperature": 0}
    seen = [call(connection, "POST", "/v1/chat/completions", chat, key)[0] for key in ("first-key", "second-key", "third", None)]
    check("keys of a file of hashes open the server, others do not", seen == [200, 200, 401, 401], seen)
    answer = call(connection, "POST", "/v1/chat/completions", chat, "first-key")[1]
    resident = lambda: int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.pid}/status").read_text())[1])
    awake = resident()
    slept = call(connection, "POST", "/sleep?level=1", None, "first-key")
    asleep = resident()
    check("a model that sleeps gives its memory back", slept[0] == 200 and asleep < awake * 0.8, f"{slept}, {awake} to {asleep} kB")
    refused = call(connection, "POST", "/v1/chat/completions", chat, "first-key")
    check("a request for it hears that it sleeps", refused[0] == 503 and "sleeps" in refused[1], refused)
    check("it says so", call(connection, "GET", "/is_sleeping", None, "first-key")[1] == '{"is_sleeping":true}')
    woken = call(connection, "POST", "/wake_up", None, "first-key")
    again = call(connection, "POST", "/v1/chat/completions", chat, "first-key")
    text = lambda body: json.loads(body)["choices"][0]["message"]["content"]
    check("it wakes up and answers the same", woken[0] == again[0] == 200 and text(again[1]) == text(answer), (woken, again))
finally:
    stop(server)
keys.write_text("first-key\n")
said = refusal("--api-key-file", str(keys))
check("a key in place of its hash is refused, and not shown", "line 1" in said and "first-key" not in said, said)

# --- HTTPS ----------------------------------------------------------------------------------------------------------------
if not shutil.which("openssl"):
    print("SKIPPED https: the program openssl is not installed")
    raise SystemExit(exit_code())


def certificate(name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(work / f"{name}.key"),
                    "-out", str(work / f"{name}.pem")], check=True, capture_output=True)
    return "--ssl-certfile", str(work / f"{name}.pem"), "--ssl-keyfile", str(work / f"{name}.key")


flags, other = certificate("server"), certificate("other")
said = refusal(*flags[:3], other[3])
if "without TLS" in said:
    print("SKIPPED https: this program is built without TLS")
    raise SystemExit(exit_code())
check("the key of another certificate is refused", "is not the key of" in said or "key values mismatch" in said, said)
said = refusal("--ssl-certfile", str(work / "none.pem"))
check("a certificate that is not there is named", "none.pem" in said, said)

server, scheme, port = start("--device", "mock", *flags)
context = ssl.create_default_context(cafile=str(work / "server.pem"))
connect = lambda **more: http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context, **more)
idle = []
try:
    check("the log says https", scheme == "https", scheme)
    connection = connect()
    seen = [call(connection, "POST", "/v1/completions", {"prompt": f"hello {i}", "max_tokens": 20})[0] for i in range(3)]
    check("three requests over one connection", seen == [200] * 3, seen)
    large = call(connection, "POST", "/tokenize", {"prompt": "word " * 200000})
    check("a body of a megabyte, and its answer", large[0] == 200 and json.loads(large[1])["count"] > 100000, large[1][:200])

    def stream(i):
        own = connect()
        own.request("POST", "/v1/completions", json.dumps({"prompt": f"stream {i} " * 20, "max_tokens": 200, "stream": True}),
                    {"Content-Type": "application/json"})
        body = own.getresponse().read().decode()
        events = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1] if json.loads(event)["choices"])
        return events[-1] == "[DONE]" and text.strip() == (f"stream {i} " * 20).strip()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        whole = list(pool.map(stream, range(64)))
    check("64 streams come whole", all(whole), f"{whole.count(False)} did not")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        one = ssl.create_default_context(cafile=str(work / "server.pem"))
        one.minimum_version = one.maximum_version = version
        seen = call(http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=one), "GET", "/health")[0]
        check(f"{version.name} is spoken", seen == 200, seen)
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    got = b""
    try:
        while piece := plain.recv(1000):
            got += piece
    except OSError:
        pass
    check("plain HTTP gets no answer", b"HTTP/1.1" not in got, got)
    gone = connect()
    gone.request("POST", "/v1/completions", json.dumps({"prompt": "away " * 100, "max_tokens": 400, "stream": True}),
                 {"Content-Type": "application/json"})
    gone.getresponse().read(10)
    gone.sock.close() if gone.sock else None
    del gone
    idle = [connect() for _ in range(4)]
    for each in idle:
        each.connect()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]  # no handshake
    check("health is well afterwards", call(connect(), "GET", "/health")[0] == 200)
finally:
    code, seconds = stop(server)
check("SIGTERM ends it at once, whatever is connected", code == 0 and seconds < 8, f"code {code} after {seconds:.1f} s")
raise SystemExit(exit_code())

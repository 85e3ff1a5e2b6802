#!/usr/bin/env python3
"""What an operator sees of a running server: a trace of each request at a collector, and the state in the log after SIGUSR1.

operations.py BUILD_DIR     starts a collector and a server of its own on free ports of loopback
"""
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

root = pathlib.Path(__file__).resolve().parents[2]
program = str(pathlib.Path(sys.argv[1]).resolve() / "spate")
failed = False


def report(name, problem=""):
    global failed
    failed |= bool(problem)
    print(f"FAILED {name}: {problem}" if problem else f"ok {name}", flush=True)


class Collector(http.server.BaseHTTPRequestHandler):
    received = []  # path, headers, body

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, dict(self.headers), json.loads(body)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.02)
    return condition()


def call(path, body=None, headers={}):
    request = urllib.request.Request(url + path, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.read().decode()


collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
server = subprocess.Popen([program, "serve", "models/mini-qwen3", "--device", "cpu", "--port", "0", "--host", "127.0.0.1",
                           "--otlp-traces-endpoint", f"http://127.0.0.1:{collector.server_port}"],
                          cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "OTEL_SERVICE_NAME": "arithmetic", "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a,x-more=b=c"})
try:
    log, url = [], ""
    for line in server.stderr:
        log.append(line)
        found = re.search(r"listening on (http://127\.0\.0\.1:\d+)", line)
        if found:
            url = found.group(1)
            break
    threading.Thread(target=lambda: log.extend(server.stderr), daemon=True).start()

    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    question = {"model": "mini-qwen3", "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
    call("/v1/chat/completions", question, {"traceparent": f"00-{trace_id}-{span_id}-01"})
    report("a trace comes to the collector", "" if wait_for(lambda: Collector.received) else "none came in 20 s")
    path, headers, body = Collector.received[0]
    report("path and headers are the collector's", "" if (path, headers.get("x-tenant"), headers.get("x-more")) == ("/v1/traces", "a", "b=c")
           else f"{path} {headers}")
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    names = [span["name"] for span in spans]
    report("the spans are the request's phases", "" if names == ["llm_request", "queue", "prefill", "decode", "detokenize"] else str(names))
    report("the caller's trace goes on", "" if {span["traceId"] for span in spans} == {trace_id} and spans[0]["parentSpanId"] == span_id
           else str(spans[0]))
    resource = body["resourceSpans"][0]["resource"]["attributes"]
    report("the service is named by the environment",
           "" if {"key": "service.name", "value": {"stringValue": "arithmetic"}} in resource else str(resource))
    try:
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError:
        print("not run: OpenTelemetry's own schema (opentelemetry-proto is not installed)", flush=True)
    else:
        try:
            json_format.ParseDict(body, trace_service_pb2.ExportTraceServiceRequest())
            report("OpenTelemetry's schema takes it")
        except json_format.ParseError as error:
            report("OpenTelemetry's schema takes it", str(error))

    running = {**question, "max_tokens": 900, "ignore_eos": True, "stream": True}
    streams = [threading.Thread(target=call, args=("/v1/chat/completions", running), daemon=True) for _ in range(3)]
    for stream in streams:
        stream.start()
    wait_for(lambda: "vllm:num_requests_running{" in call("/metrics")[1] and
             re.search(r"num_requests_running\{[^}]*\} 3", call("/metrics")[1]))
    server.send_signal(signal.SIGUSR1)
    wait_for(lambda: sum("[state]" in line and "request " in line for line in log) >= 3)
    told = "".join(line for line in log if "[state]" in line)
    missing = [part for part in ("requests in flight", "mini-qwen3: ready", "KV cache: ", "step ", "decode for", "generated") if part not in told]
    report("SIGUSR1 writes the state", f"without {missing}: {told}" if missing else "")
    for stream in streams:
        stream.join(60)
    report("and the streams go on", "" if not any(stream.is_alive() for stream in streams) and call("/health")[0] == 200 else "they hang")
    num_before = sum(len(r[2]["resourceSpans"][0]["scopeSpans"][0]["spans"]) for r in Collector.received)
    server.send_signal(signal.SIGTERM)
    code = server.wait(30)
    num_after = sum(len(r[2]["resourceSpans"][0]["scopeSpans"][0]["spans"]) for r in Collector.received)
    report("what waits is sent at the end", "" if code == 0 and num_after == 20 and num_after >= num_before else f"code {code}, {num_after} spans")
finally:
    if server.poll() is None:
        server.kill()
sys.exit(1 if failed else 0)

#!/usr/bin/env python3
"""What an operator sees of a running server: a trace of each request at a collector, and the state in the log after SIGUSR1.

operations.py BUILD_DIR     starts a collector and a server of its own on free ports of loopback
"""
import http.server
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

from checks import check, exit_code, program, report, root, wait_for

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
    check("a trace comes to the collector", wait_for(lambda: Collector.received), "none came")
    path, headers, body = Collector.received[0]
    check("path and headers are the collector's",
          (path, headers.get("x-tenant"), headers.get("x-more")) == ("/v1/traces", "a", "b=c"),
          f"{path} {headers}")
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    names = [span["name"] for span in spans]
    check("the spans are the request's phases",
          names == ["llm_request", "queue", "prefill", "decode", "detokenize"],
          str(names))
    check("the caller's trace goes on",
          {span["traceId"] for span in spans} == {trace_id} and spans[0]["parentSpanId"] == span_id,
          str(spans[0]))
    of_resource = body["resourceSpans"][0]["resource"]["attributes"]
    check("the service is named by the environment",
          {"key": "service.name", "value": {"stringValue": "arithmetic"}} in of_resource,
          str(of_resource))
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
    wanted = ("requests in flight", "mini-qwen3: ready", "KV cache: ", "step ", "decode for", "generated")
    missing = [part for part in wanted if part not in told]
    report("SIGUSR1 writes the state", f"without {missing}: {told}" if missing else "")
    for stream in streams:
        stream.join(60)
    check("and the streams go on",
          not any(stream.is_alive() for stream in streams) and call("/health")[0] == 200,
          "they hang")
    curl = wait_for(lambda: [line.partition("try: ")[2] for line in log if "try: curl " in line])
    shown = subprocess.run(curl[0], shell=True, capture_output=True, text=True, timeout=60, check=False)
    check("the log's curl asks the model", '"assistant"' in shown.stdout, f"{curl}: {shown}")
    rates = wait_for(lambda: re.findall(r"throughput: ([0-9.]+) tokens/s", "".join(log)))
    check("the log's rates are of the time since the start", rates and all(float(rate) < 1e5 for rate in rates), rates)
    num_before = sum(len(r[2]["resourceSpans"][0]["scopeSpans"][0]["spans"]) for r in Collector.received)
    server.send_signal(signal.SIGTERM)
    code = server.wait(30)
    num_after = sum(len(r[2]["resourceSpans"][0]["scopeSpans"][0]["spans"]) for r in Collector.received)
    check("what waits is sent at the end",
          code == 0 and num_after == 25 and num_after >= num_before,
          f"code {code}, {num_after} spans")
finally:
    if server.poll() is None:
        server.kill()

# ---- logs for machines ----

server = subprocess.Popen([program, "serve", "models/mini-qwen3", "--device", "mock", "--port", "0", "--log-format", "json"], cwd=root,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
try:
    log = []
    for line in server.stderr:
        log.append(line)
        found = re.search(r"listening on (http://127\.0\.0\.1:\d+)", line)
        if found:
            url = found.group(1)
            break
    reader = threading.Thread(target=lambda: log.extend(server.stderr), daemon=True)
    reader.start()
    call("/v1/completions", {"prompt": "hi", "max_tokens": 2}, {"X-Request-Id": 'from-"there"'})
    try:
        call("/nowhere", headers={"X-Request-Id": "lost"})
    except urllib.error.HTTPError:
        pass
    server.send_signal(signal.SIGTERM)
    server.wait(30)
    reader.join(5)
    lines = [json.loads(line) for line in log]
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    check("--log-format json: each line is an object, with the time of UTC",
          all({"level", "time", "component", "message"} <= line.keys() and stamp.fullmatch(line["time"]) for line in lines), lines)
    seen = {line["request_id"]: (line["method"], line["path"], line["status"]) for line in lines if line["component"] == "http"}
    check("its access log has the caller's request ids", seen == {'from-"there"': ("POST", "/v1/completions", 200), "lost": ("GET", "/nowhere", 404)},
          seen)
finally:
    server.kill()

# ---- a system that lends no threads ----

def two_stacks():
    resource.setrlimit(resource.RLIMIT_STACK, (2 << 30, 2 << 30))  # of each thread
    resource.setrlimit(resource.RLIMIT_AS, (7 << 29, 7 << 29))  # one more fits


for command in (["generate", "models/mini-qwen3", "-p", "hi"], ["serve", "models/mini-qwen3", "--port", "0"]):
    ended = subprocess.run([program, *command, "--device", "cpu"], cwd=root, capture_output=True, text=True, timeout=60, preexec_fn=two_stacks)
    check(f"spate {command[0]} without threads ends with a message", ended.returncode == 1 and "lends no more threads" in ended.stderr,
          f"{ended.returncode} {ended.stderr[-300:]}")
sys.exit(exit_code())

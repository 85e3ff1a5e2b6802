#!/usr/bin/env python3
"""Every metric that deploy/ names exists in /metrics of a running server, with the labels that are used.

dashboards.py http://127.0.0.1:8000     also runs promtool over the metrics and the rules where it is installed
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

root = pathlib.Path(__file__).resolve().parents[2]
text = urllib.request.urlopen(f"{sys.argv[1]}/metrics", timeout=10).read().decode()
served = set(re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{| )", text, re.M))
labels = set(re.findall(r'(\w+)="', text))
failed = False


def report(name, problems):
    global failed
    failed |= bool(problems)
    print(f"FAILED {name}: {', '.join(problems)}" if problems else f"ok {name}")


def check(name, expressions):
    used = {metric for each in expressions for metric in re.findall(r"\b(?:vllm|spate):\w+|\b(?:http|process)_\w+", each)}
    problems = sorted(used - served)
    for each in expressions:
        for group in re.findall(r"by \(([^)]*)\)", each):
            problems += [f"label {label}" for label in re.split(r"[,\s]+", group) if label not in labels]
    report(f"{name} names {len(used)} metrics that exist", problems if used else ["it names none"])


dashboard = json.loads((root / "deploy/grafana/spate.json").read_text())
check("deploy/grafana/spate.json", [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]])
rules = (root / "deploy/prometheus/alerts.yaml").read_text()
check("deploy/prometheus/alerts.yaml", re.findall(r"^ *expr: (.*)$", rules, re.M))

promtool = shutil.which("promtool")
if not promtool:
    print("SKIPPED promtool: not installed (Debian: apt-get install prometheus)")
else:
    metrics = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    # vLLM's names have a colon, and one histogram of theirs ends in _total: nothing else may be said against them.
    known = re.compile(r"should not contain ':'$|^vllm:iteration_tokens_total ")
    lines = (metrics.stdout + metrics.stderr).splitlines()
    report("promtool check metrics says nothing new", [line for line in lines if not known.search(line)])
    rules = subprocess.run([promtool, "check", "rules", root / "deploy/prometheus/alerts.yaml"], capture_output=True, text=True)
    report("promtool takes the alert rules", [] if rules.returncode == 0 else [rules.stdout + rules.stderr])
sys.exit(failed)

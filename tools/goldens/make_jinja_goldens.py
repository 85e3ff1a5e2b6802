#!/usr/bin/env python3
"""Makes test/goldens/jinja/: what Python's jinja2, set up as transformers does, renders.

    python3 tools/goldens/make_jinja_goldens.py [--real DIR] [--random N --seed S --output FILE]

Needs jinja2 and transformers (made with 3.1.6 and 5.23). Seeded: the same versions give the same files.

    snippets.jsonl       first lines {"context": ...}; then {"t": template, "c": context, "o": output}, or "e": true for an error
    templates/*.jinja    our own templates in the manner of several model families
    conversations.json   conversations, hand-written: messages, tools, kwargs, flags
    templates.jsonl      {"t": name, "c": conversation, "o": output} or {"e": raise_exception's text, or true}
    real.jsonl           the same for the templates in --real, which are others' texts: of texts only [bytes, FNV-1a hash]

--random makes N random snippets into FILE instead, for longer differential runs.
"""

import argparse
import contextlib
import copy
import datetime
import json
import pathlib
import re
import signal

import jinja2
from transformers.utils import chat_template_utils

from jinja_cases import BLOCKS, CONTEXTS, SNIPPETS, Grammar

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "test" / "goldens" / "jinja"
NUM_RANDOM = 4500
SEED = 7
SPECIAL_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 13, 5, 9, 250000)


chat_template_utils.datetime = FixedTime


@contextlib.contextmanager
def time_limit(seconds):
    def stop(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def snippet_case(template, index):
    """One line of snippets.jsonl, or None when Python's answer is not comparable: addresses, big integers, complex numbers."""
    try:
        with time_limit(2):
            compiled = chat_template_utils._compile_jinja_template(template)
            plain = compiled.environment.overlay(optimized=False)
            output = compiled.render(**copy.deepcopy(CONTEXTS[index]))
            output.encode()
            # What constant folding hides (an unknown filter behind a constant `or`) is no property of the language.
            if plain.from_string(template).render(**copy.deepcopy(CONTEXTS[index])) != output:
                return None
    except TimeoutError:
        return None
    except RecursionError:
        return {"t": template, "c": index, "e": True}
    except Exception as error:  # noqa: BLE001: any error is an error
        if isinstance(error, OverflowError):
            return None
        if "output" in locals():
            return None
        return {"t": template, "c": index, "e": True}
    if re.search(r" at 0x|<built-in|<class|<function|<async|object at|\d{19}|\d\.?\d*e\+1[89]|[\dn]j\)|dict_(items|keys|values)\(.*\) object", output):
        return None
    if len(output) > 4000:
        return None
    return {"t": template, "c": index, "o": output}


def hand_written():
    """The lines of SNIPPETS; a line that continues a string of the one before belongs to it."""
    templates, pending = [], ""
    for line in SNIPPETS.strip("\n").split("\n"):
        pending += line
        if pending.endswith("\\") or pending.endswith("{# multi"):
            pending += "\n"
            continue
        templates.append(pending)
        pending = ""
    return templates + BLOCKS


def random_cases(seed, count):
    grammar = Grammar(seed)
    seen, num_errors = set(), 0
    while len(seen) < count:
        template = grammar.template()
        if template in seen or len(template) > 700:
            continue
        case = snippet_case(template, 0 if grammar.rng.random() < 0.93 else 1)
        if case is None or ("e" in case and num_errors > 0.25 * len(seen)):
            continue
        num_errors += "e" in case
        seen.add(template)
        yield case


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def make_snippets():
    yield from ({"context": context} for context in CONTEXTS)
    for template in hand_written():
        for index in (0, 1) if len(template) < 60 else (0,):
            case = snippet_case(template, index)
            if case is not None:
                yield case
    yield from random_cases(SEED, NUM_RANDOM)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def render_conversation(template, conversation):
    """transformers' rendering: {"o": output} or {"e": ...}, of the messages as a server hands them over: content in parts becomes
    a text unless the template reads parts, content null of an assistant becomes "" unless the template asks for it."""
    messages = conversation["messages"]
    if not re.search(r"for (part|block|piece|item|content) in ", template):
        messages = [{**m, "content": "\n".join(p["text"] for p in m["content"])} if isinstance(m.get("content"), list) else m
                    for m in messages]

    def attempt(chat):
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[copy.deepcopy(chat)], tools=conversation.get("tools") or None, documents=conversation.get("documents"),
            chat_template=template, continue_final_message=conversation.get("continue_final_message", False),
            add_generation_prompt=conversation.get("add_generation_prompt", False), **SPECIAL_TOKENS, **conversation.get("kwargs", {}))
        return {"o": rendered[0]}

    if not re.search(r"(?<![a-z_])content['\"]?\]? is (not )?none", template):
        messages = [{**m, "content": ""} if m["role"] == "assistant" and m.get("content") is None else m for m in messages]
    try:
        return attempt(messages)
    except jinja2.exceptions.TemplateError as error:
        return {"e": str(error) if type(error) is jinja2.exceptions.TemplateError else True}
    except (TypeError, ValueError, AttributeError):
        return {"e": True}


def make_conversations(folder, hashed):
    conversations = json.loads((OUT / "conversations.json").read_text(encoding="utf-8"))
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for index, conversation in enumerate(conversations):
            case = {"t": path.name, "c": index, **render_conversation(template, conversation)}
            for key in ("o", "e") if hashed else ():
                if isinstance(case.get(key), str):
                    data = case[key].encode()
                    case[key] = [len(data), fnv1a(data)]
            yield case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", type=pathlib.Path, help="folder of real templates (*.jinja)")
    parser.add_argument("--random", type=int, help="only make this many random snippets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if args.random:
        write_lines(args.output, [{"context": c} for c in CONTEXTS] + list(random_cases(args.seed, args.random)))
        return
    write_lines(OUT / "snippets.jsonl", make_snippets())
    write_lines(OUT / "templates.jsonl", make_conversations(OUT / "templates", hashed=False))
    if args.real:
        write_lines(OUT / "real.jsonl", make_conversations(args.real, hashed=True))


if __name__ == "__main__":
    main()

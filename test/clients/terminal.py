#!/usr/bin/env python3
"""`spate chat` in a pseudo-terminal: line editing, history, Ctrl-C, thinking, commands, hostile output.

terminal.py BUILD_DIR      the bundled model, and a scripted server of this file
"""
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

root = pathlib.Path(__file__).resolve().parents[2]
spate = str(pathlib.Path(sys.argv[1]).resolve() / "spate")
work = tempfile.TemporaryDirectory()
environment = dict(os.environ, TERM="xterm", XDG_STATE_HOME=work.name, LANG="C.UTF-8")
environment.pop("NO_COLOR", None)
failed = False


class Terminal:
    """A program whose terminal we are."""

    def __init__(self, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(root)
                os.execve(spate, [spate, "chat", *arguments], environment)
            finally:
                os._exit(127)  # this copy of the test ends here
        self.seen = ""

    def expect(self, text, seconds=20):
        """Reads until `text` comes; gives what came before it."""
        end = time.time() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.time()))
            try:
                new = os.read(self.fd, 65536) if ready else b""
            except OSError:
                new = b""
            if not new:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            self.seen += new.decode("utf-8", "replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def say(self, text):
        """A line, once the program asks; gives all until it asks again."""
        self.type(text + "\r")
        self.expect("\x1b[?2004l")  # the line has been read
        return self.asks()

    def asks(self):
        """Waits for the prompt, behind which the keys are the editor's; gives what came before."""
        before = self.expect("\x1b[?2004h")
        while not re.search(r"(>>>|\.\.\.) ", self.seen):
            self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
        while termios.tcgetattr(self.fd)[3] & termios.ICANON:  # the prompt is shown just before the keys are the editor's
            time.sleep(0.005)
        self.seen = ""
        return before

    def ends(self, seconds=10, reap=True):
        """Waits for its end; the exit code, negative: the signal. reap=False: its id stays its own until reap()."""
        end = time.time() + seconds
        while time.time() < end:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found:
                if reap:
                    self.reap()
                return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            try:
                if select.select([self.fd], [], [], 0.05)[0]:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                pass
        raise AssertionError(f"it does not end: {self.seen!r}")

    def reap(self):
        os.waitpid(self.pid, 0)
        os.close(self.fd)

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


requests = []  # bodies that the scripted server got
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b6n\r\x08 **bold** end"


class Script(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer secret":
            return self.answer(401, {"error": {"message": "no key"}})
        self.answer(200, {"data": [{"id": "scripted", "max_model_len": 100}]})

    def chunk(self, delta):
        self.wfile.write(f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': None}]})}\n\n".encode())
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requests.append(body)
        text = body["messages"][-1]["content"]
        if len(body["messages"]) > 5 and text == "too long":
            return self.answer(400, {"error": {"message": "maximum context length is 100", "code": "context_length_exceeded"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            if text == "hostile":
                for c in HOSTILE:
                    self.chunk({"content": c})
            elif text == "think":
                self.chunk({"reasoning_content": "let me see"})
                self.chunk({"content": "\n\nseen"})
            elif text == "forever":
                for i in range(10_000):
                    self.chunk({"content": f"word{i} "})
                    time.sleep(0.02)
            elif text == "silent":
                time.sleep(30)
            else:
                self.chunk({"content": f"echo {text}"})
            usage = {"prompt_tokens": 3, "completion_tokens": 5}
            self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        except (BrokenPipeError, ConnectionResetError):
            requests.append("gone")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
key_file = pathlib.Path(work.name) / "key"
key_file.write_text("secret\n")


def remote(*arguments):
    terminal = Terminal("--url", url, "--api-key-file", str(key_file), *arguments)
    terminal.asks()
    return terminal


def test(check):
    global failed
    terminal = None
    try:
        terminal = check()
        print(f"ok terminal: {check.__doc__}")
    except Exception as error:  # a line for each, whatever is wrong
        failed = True
        print(f"FAILED terminal: {check.__doc__}: {type(error).__name__} {error}")
    finally:
        if terminal:
            terminal.kill()


def ask_in_silence(terminal):
    """Sends a message that gets no answer; comes back when it has arrived. Before, Ctrl-C would be a key of the editor's."""
    num_before = len(requests)
    terminal.type("silent\r")
    end = time.time() + 20
    while len(requests) == num_before:
        assert time.time() < end, terminal.seen
        time.sleep(0.01)


def sent():
    return requests[-1]["messages"][-1]["content"]


@test
def local_model():
    """the bundled model answers, with tok/s, and Ctrl-D ends"""
    t = Terminal("models/mini-qwen3", "--device", "cpu")
    t.expect("/help tells the commands")
    t.asks()
    answer = t.say("Hello!")
    assert "How can I help you" in answer and "tok/s" in answer and "<think>" not in answer, answer
    t.type("\x04")
    assert t.ends() == 0


@test
def editing():
    """cursor keys, history, words of two columns"""
    t = remote()
    t.say("ello\x1b[D\x1b[D\x1b[D\x1b[DH\x1b[C\x1b[C\x1b[C\x1b[C\x7f!")
    assert sent() == "Hell!", sent()
    t.say("潮水\x1b[D\x7f大")
    assert sent() == "大水", sent()
    t.say("\x1b[A\x1b[A?")
    assert sent() == "Hell!?", sent()
    t.type("/bye\r")
    assert t.ends() == 0
    t = remote()
    t.say("\x1b[A\x1b[A")
    assert sent() == "Hell!?", sent()  # of the run before
    history = pathlib.Path(work.name) / "spate" / "chat_history"
    assert history.stat().st_mode & 0o077 == 0, oct(history.stat().st_mode)
    return t


@test
def several_lines():
    """several lines between quotes, and pasted"""
    t = remote()
    t.say('"""one')
    t.say("  two")
    t.say('three"""')
    assert sent() == "one\n  two\nthree", sent()
    t.say("\x1b[200~a\rb\x1b[2Jc\x1b[201~!")
    assert sent() == "a\nb[2Jc!", sent()
    t.say("\x1b[200~é 潮水 \U0001f9a5\x1b[201~!")
    assert sent() == "é 潮水 \U0001f9a5!", sent()
    os.write(t.fd, b"\x1b[200~a\xff\xc3(b")  # no UTF-8
    t.say("\x1b[201~!")
    assert sent().startswith("a") and sent().endswith("b!"), sent()
    return t


@test
def resized():
    """a window that changes its size while a line is typed"""
    t = Terminal("models/mini-qwen3", "--device", "mock")
    t.asks()
    has_ended = threading.Event()

    def change_sizes():
        while not has_ended.is_set():
            for columns, rows in [(200, 60), (80, 24), (3, 2), (20, 5)]:
                fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.kill(t.pid, signal.SIGWINCH)

    changing = threading.Thread(target=change_sizes)
    changing.start()
    try:
        for _ in range(100):
            t.type("word " * 4)
            while select.select([t.fd], [], [], 0.01)[0]:
                os.read(t.fd, 65536)
    finally:
        has_ended.set()
        changing.join()
    assert "word end" in t.say("end")
    return t


@test
def interrupt():
    """Ctrl-C ends the answer, and not the program"""
    t = remote()
    t.type("forever\r")
    t.expect("word5")
    t.type("\x03")
    t.expect("ended by Ctrl-C")
    t.asks()
    assert "echo more" in t.say("more")
    messages = requests[-1]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"] and messages[1]["content"].startswith("word0 word1"), messages
    ask_in_silence(t)
    t.type("\x03")
    t.expect("ended before it began")
    t.asks()
    t.type("not sent\x03")
    t.asks()
    t.type("\x03")
    t.expect("Ctrl-C again")
    t.asks()
    t.type("\x03")
    assert t.ends() == 0
    assert "not sent" not in json.dumps(requests)


@test
def interrupt_twice():
    """Ctrl-C again and again ends the program"""
    t = remote()
    ask_in_silence(t)
    # The second finds the answer still ending (130), the program on its way back to the prompt (the signal), or the prompt, where the
    # third ends it (0).
    interrupts = threading.Event()

    def send():
        while not interrupts.wait(0.02):
            os.kill(t.pid, signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        code = t.ends(10, reap=False)
    finally:
        interrupts.set()
        sender.join()
    t.reap()
    assert code in (130, -signal.SIGINT, 0), code


@test
def thinking():
    """thinking is dimmed, or hidden"""
    t = remote()
    assert "\x1b[2mlet me see\r\n\x1b[0m\r\nseen" in t.say("think")
    t.say("/set hide-thinking on")
    answer = t.say("think")
    assert "let me see" not in answer and "seen" in answer, answer
    return t


@test
def hostile():
    """escape sequences of a model are shown, not obeyed"""
    t = remote()
    answer = t.say("hostile")
    for sequence in ("\x1b]", "\x1b[2J", "\x1b[31m", "\x07", "\x9b", "\x08"):
        assert sequence not in answer, (sequence, answer)
    assert "^[]0;owned^G^[[2J^[[31mred" in answer and "\x1b[1mbold\x1b[22m end" in answer, answer
    assert not re.sub(r"\x1b\[[0-9;]*m", "", answer).count("\x1b"), answer
    return t


@test
def commands():
    """/set, /system, /save, /clear, /load, /show, a conversation that is too long"""
    t = remote()
    assert "nearest is /show" in t.say("/shw")
    assert "must be in [0, 2]" in t.say("/set temperature 3")
    t.say("/set temperature 0.5")
    t.say("/system Be brief.")
    for text in ("a", "b", "c"):
        t.say(text)
    assert requests[-1]["temperature"] == 0.5 and requests[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
    file = f"{work.name}/talk.json"
    assert "saved 3 turns" in t.say(f"/save {file}")
    said = t.say("too long")
    assert "maximum context length" in said and "/drop forgets the oldest" in said, said
    t.say("/set drop-oldest on")
    assert "forgot the oldest 1 turns" in t.say("too long").replace("oldest 2", "oldest 1")
    t.say("/clear")
    t.say("fresh")
    assert len(requests[-1]["messages"]) == 2, requests[-1]
    assert "loaded 3 turns" in t.say(f"/load {file}")
    shown = t.say("/show")
    assert "scripted" in shown and "3 turns" in shown and "Be brief." in shown, shown
    return t


@test
def pipe():
    """in a pipe: plain lines, no escape sequence; a bad command is an exit code"""
    run = subprocess.run([spate, "chat", "--url", url, "--api-key-file", key_file], input="hostile\nthink\n/show\n", capture_output=True,
                         text=True, timeout=60, env=environment)
    assert run.returncode == 0, run
    assert "\x1b" not in run.stdout and run.stdout.endswith("<think>\nlet me see\n</think>\n\nseen\n"), run.stdout
    assert "scripted" in run.stderr and "scripted" not in run.stdout, run
    run = subprocess.run([spate, "chat", "--url", url, "--api-key-file", key_file], input=b"more\r\n/show\r\n/bye\r\n",
                         capture_output=True, timeout=60, env=environment)
    assert run.returncode == 0 and sent() == "more", run
    run = subprocess.run([spate, "chat", "--url", url], input="x\n", capture_output=True, text=True, timeout=60, env=environment)
    assert run.returncode == 1 and "no key" in run.stderr, run


@test
def full_disk():
    """an answer that cannot be written is an error; a reader that goes away is none"""
    command = [spate, "generate", "models/mini-qwen3", "--device", "cpu", "--prompt", "Hello!"]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment, cwd=root)
    assert run.returncode == 1 and "the output is not complete" in run.stderr, run
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, env=environment, cwd=root)
    os.close(writing)
    assert run.returncode == 0 and "not complete" not in run.stderr, run


sys.exit(failed)

"""What the tests of this folder share that start programs of their own: the build that they are given, and their cases."""
import pathlib
import sys
import time

root = pathlib.Path(__file__).resolve().parents[2]
program = str(pathlib.Path(sys.argv[1]).resolve() / "spate")
_failed = False


def report(name, problem=""):
    """One case, a line: ok without a problem."""
    global _failed
    _failed |= bool(problem)
    print(f"FAILED {name}: {problem}" if problem else f"ok {name}", flush=True)


def check(name, is_right, seen=""):
    """One case, with what was seen where it is wrong."""
    report(name, "" if is_right else str(seen) or "it is not so")


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.05)
    return condition()


def exit_code():
    return 1 if _failed else 0

"""The command `spate`: the program that lies in the package, in this process's place."""

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "_native" / "bin" / "spate"
    os.execv(program, ["spate", *sys.argv[1:]])

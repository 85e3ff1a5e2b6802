"""The C interface (include/spate.h) by ctypes, which lets other threads run while a call waits."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any, Iterator

ABI_VERSION = 1
TIMEOUT, CHUNK, DONE, FAILED = range(4)
_POLL_SECONDS = 0.1  # between looks for Ctrl-C


class SpateError(Exception):
    """What the engine refused, with the API's message, type, param and code."""

    def __init__(self, error: dict[str, Any]):
        super().__init__(error.get("message", "unknown error"))
        self.type = error.get("type")
        self.param = error.get("param")
        self.code = error.get("code")


def _load() -> ctypes.CDLL:
    path = os.environ.get("SPATE_LIBRARY") or str(pathlib.Path(__file__).parent / "_native" / "lib" / "libspate.so")
    library = ctypes.CDLL(path)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("spate_abi_version", ctypes.c_int, []),
        ("spate_version", text, []),
        ("spate_free", None, [pointer]),
        ("spate_open", pointer, [ctypes.POINTER(text), ctypes.c_size_t, ctypes.POINTER(pointer)]),
        ("spate_close", None, [pointer]),
        ("spate_start", pointer, [pointer, text, text]),
        ("spate_next", ctypes.c_int, [pointer, ctypes.c_double, ctypes.POINTER(pointer)]),
        ("spate_cancel", None, [pointer]),
        ("spate_request_free", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.spate_abi_version() != ABI_VERSION:
        raise ImportError(f"{path} has ABI version {library.spate_abi_version()}, this package needs {ABI_VERSION}")
    return library


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = _load()
    return _library


def _take_text(pointer: ctypes.c_void_p) -> str | None:
    if not pointer.value:
        return None
    text = ctypes.string_at(pointer.value).decode()
    library().spate_free(pointer)
    return text


class Request:
    """One request; iterating gives the chunks of a stream, or the one answer."""

    def __init__(self, engine: Engine, path: str, body: dict[str, Any]):
        self._engine = engine  # lives as long
        self._process = os.getpid()
        self._handle = None  # where the body is no JSON
        self._handle = library().spate_start(engine.handle, path.encode(), json.dumps(body, allow_nan=False).encode())

    def next(self, timeout_seconds: float) -> tuple[int, Any]:
        """The event and its JSON; waits without the GIL."""
        text = ctypes.c_void_p()
        event = library().spate_next(self._handle, timeout_seconds, ctypes.byref(text))
        payload = _take_text(text)
        value = json.loads(payload) if payload else None
        if event == FAILED:
            raise SpateError(value["error"])
        return event, value

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                event, value = self.next(_POLL_SECONDS)
                if event != TIMEOUT and value is not None:
                    yield value
                if event == DONE:
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Cancels what still runs."""
        handle, self._handle = self._handle, None
        if handle and os.getpid() == self._process:
            library().spate_request_free(handle)

    def __del__(self) -> None:
        self.close()


class Engine:
    """A model in this process. It has threads, which a fork does not copy, so that in a child it neither runs nor ends."""

    def __init__(self, flags: list[str]):
        self.handle = None
        self._token_texts: dict[int, str] = {}
        self._process = os.getpid()
        array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
        error = ctypes.c_void_p()
        self.handle = library().spate_open(array, len(flags), ctypes.byref(error))
        if not self.handle:
            raise ValueError(_take_text(error))

    def start(self, path: str, body: dict[str, Any]) -> Request:
        if not self.handle:
            raise RuntimeError("the engine is closed")
        if os.getpid() != self._process:
            raise RuntimeError(f"the engine belongs to process {self._process}, which this one was forked from: "
                               "load the model in the process that uses it")
        return Request(self, path, body)

    def call(self, path: str, body: dict[str, Any]) -> Any:
        for answer in self.start(path, body):
            return answer
        raise RuntimeError(f"{path} gave no answer")

    def token_text(self, token_id: int) -> str:
        if token_id not in self._token_texts:
            self._token_texts[token_id] = self.call("/detokenize", {"tokens": [token_id]})["prompt"]
        return self._token_texts[token_id]

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle and os.getpid() == self._process:
            library().spate_close(handle)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a model in memory is not copied or pickled: load it where it is used")


def flags_of(model: str, arguments: dict[str, Any]) -> list[str]:
    """Keyword arguments as the flags of `spate serve`: max_model_len=2048 is --max-model-len 2048."""
    flags = [str(model)]
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append("--no-" + name.replace("_", "-"))
        else:
            flags += [flag, json.dumps(value) if isinstance(value, (dict, list)) else str(value)]
    return flags

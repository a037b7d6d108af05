"""Run `pbt-rl` in this process and record which functions of the product are called, in order: see counts_walks.py.

    python counts_tracer.py CHECKOUT OUT VALUE [words of pbt-rl]

OUT is a file of JSON: `functions`, such as "envs/gym.py:GymUnit.step", and lists of their numbers:
calls    all calls, in order
value    those that are passed or return VALUE (empty: none is looked for): a text with it, or the number, as it is or
         in a list, tuple or dictionary
holder   those that are passed or return a dataclass that has it
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

DEPTH, ITEMS, TEXT = 4, 100, 20_000
PRODUCT = ("algos/", "envs/", "pbt_rl/")


class Tracer:
    """Collects calls; it is a profile function of `sys.setprofile`."""

    def __init__(self, root: Path, value: str) -> None:
        self._root, self._text = f"{root}/", value
        self._number = float(value) if value else None
        self._codes: dict[CodeType, int] = {}
        self.functions: list[str] = []
        self.calls: list[int] = []
        self.value: list[int] = []
        self.holder: list[int] = []

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """Note a call or a return of a Python function."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        number = self._codes.get(code)
        if number is None:
            number = self._codes[code] = self._new(code)
        if number < 0:
            return
        if event == "call":
            self.calls.append(number)
        if self._text:
            values = list(frame.f_locals.values()) if event == "call" else [result]
            if any(self._holds(value, inside=False) for value in values):
                self.value.append(number)
            elif any(self._holds(value, inside=True) for value in values):
                self.holder.append(number)

    def _new(self, code: CodeType) -> int:
        """Number a function; -1 for what is none of the product, or a module or class that is being defined."""
        path = os.path.realpath(code.co_filename)
        inside = path.removeprefix(self._root)
        if inside == path or not inside.startswith(PRODUCT) or not code.co_flags & inspect.CO_OPTIMIZED:
            return -1
        self.functions.append(f"{inside}:{code.co_qualname}")
        return len(self.functions) - 1

    def _holds(self, value: object, depth: int = 0, *, inside: bool) -> bool:
        """Whether something has the value. inside: look into dataclasses too."""
        if isinstance(value, str):
            return len(value) < TEXT and self._text in value
        if isinstance(value, float):
            return value == self._number
        items: Iterable[object] = ()
        if isinstance(value, dict):
            items = islice(value.values(), ITEMS)
        elif isinstance(value, list | tuple):
            items = value[:ITEMS]
        elif inside and is_dataclass(value) and not isinstance(value, type):
            items = [getattr(value, f.name, None) for f in fields(value)]
        return depth < DEPTH and any(self._holds(item, depth + 1, inside=inside) for item in items)


def main() -> None:
    """Run and write. Raises SystemExit as the run does."""
    root, out, value, *words = sys.argv[1:]
    tracer = Tracer(Path(root).resolve(), value)
    sys.argv = ["pbt-rl", *words]
    del sys.path[0]  # the folder of this script
    from pbt_rl.cli import main as pbt_rl  # noqa: PLC0415 - the checkout's, once the path is as it is for users

    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        pbt_rl()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        found = {
            "functions": tracer.functions,
            "calls": tracer.calls,
            "value": tracer.value,
            "holder": tracer.holder,
        }
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

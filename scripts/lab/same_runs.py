"""Prove that two checkouts decide the same and learn the same weights, bit for bit, in serial runs of many kinds.

    python scripts/lab/same_runs.py CHECKOUT_A CHECKOUT_B [--kinds a,b] [--out DIR] [--keep]
    python scripts/lab/same_runs.py --record DIR CHECKOUT_A         write down what its runs are
    python scripts/lab/same_runs.py --against DIR CHECKOUT_B        compare with that
    python scripts/lab/same_runs.py --list                          the kinds

Each checkout trains with its own .venv/bin/python, one run after the other. What is compared, by content:

    the events of the journal, but for those written by the clock: decisions with donor, remembered generation and
    values, objectives, frames, slots, matchups; the last progress; members, best member and values of the summary;
    every tensor of every member and of every remembered state in the last checkpoint: name, type, shape, bits.

Times and measured speeds are left out. A field that only one of two records has, and a reason in other words, is a note
and no difference; a field of a decision or of a report that is gone is a difference. Each kind has to show in A what it
is for (`same_runs_kinds.py`), so that equal runs say something. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from same_runs_kinds import KINDS, Kind

PATIENCE_SECONDS = 300.0
BY_THE_CLOCK = {"start", "checkpoint", "progress", "evaluation", "lost"}
TIMES = ("time", "seconds", "milliseconds", "per_second", "busy", "bytes", "path", "folder")
"""A field whose name holds one of these is left out, in any depth."""
BY_THE_VIEW = {"elo", "win_rate"}
"""Left out too: the summary has them as they were last shown. Decisions see the ratings as objectives."""
ESSENTIAL = {
    *(
        "member",
        "members",
        "decision",
        "decisions",
        "donor",
        "donor_generation",
        "copy",
        "values",
        "report",
        "frames",
    ),
    *(
        "objectives",
        "objective",
        "episodes",
        "generation",
        "until_frames",
        "best",
        "broken",
    ),
    *("slot", "pack", "enters", "leaves", "games", "means", "ended", "parked", "in_optimizer", "in_loss"),
}
"""Fields that must not be missing in one of two records, unless the other one has nothing there."""
WORDS = "reason"
NOTHING: tuple[Any, ...] = (None, False, [], {}, "", math.nan)
MOST_LINES = 12

Tensors = dict[str, list[Any]]


@dataclass
class Told:
    """What is wrong or worth a note, each once with the number of times."""

    differences: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def differ(self, place: str, a: object, b: object) -> None:
        """Note a difference at a place."""
        self.differences[place] += 1
        self.first.setdefault(place, f"{a!r:.90} / {b!r:.90}")

    def note(self, text: str) -> None:
        """Note what is no difference."""
        self.notes[text] += 1

    def lines(self) -> list[str]:
        """Return the lines to print."""
        found = [
            f"DIFFERS {place} ({n} x), first: {self.first[place]}" for place, n in self.differences.items()
        ]
        more = [f"... and {len(found) - MOST_LINES} other places"] if len(found) > MOST_LINES else []
        return [*found[:MOST_LINES], *more, *(f"note    {text} ({n} x)" for text, n in self.notes.items())]


def compare(a: Any, b: Any, place: str, told: Told) -> None:
    """Compare two values of JSON, fields by name."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(name for name in b if name not in a)]:
            inner = f"{place}.{name}"
            if is_time(name):
                continue
            if name not in a or name not in b:
                other = a.get(name, b.get(name))
                side = "A" if name in a else "B"
                if name in ESSENTIAL and other not in NOTHING and not is_nan(other):
                    told.differ(inner, a.get(name, "missing"), b.get(name, "missing"))
                else:
                    told.note(f"{inner} only in {side}")
            elif name == WORDS:
                if a[name] != b[name]:
                    told.note(f"{inner} in other words")
            else:
                compare(a[name], b[name], inner, told)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            told.differ(f"{place}, number", len(a), len(b))
        for one, other in zip(a, b, strict=False):
            compare(one, other, f"{place}[]", told)
    elif not same(a, b):
        told.differ(place, a, b)


def is_time(name: str) -> bool:
    """Whether a field is measured by the clock or differs by folder."""
    return name in BY_THE_VIEW or any(word in name for word in TIMES)


def is_nan(value: object) -> bool:
    """Whether it is no number, also as text."""
    return (isinstance(value, float) and math.isnan(value)) or value in ("NaN", "nan")


def same(a: object, b: object) -> bool:
    """Whether two scalars are equal, NaN to NaN; 1 and 1.0 are, 1 and True are not."""
    if is_nan(a) and is_nan(b):
        return True
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def sorted_proofs(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order proofs that follow each other by member: between two other events their order means nothing."""
    found: list[dict[str, Any]] = []
    proofs: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "applied":
            proofs.append(event)
            continue
        found += [*sorted(proofs, key=_member_of), event]
        proofs = []
    return found + sorted(proofs, key=_member_of)


def _member_of(proof: dict[str, Any]) -> tuple[int, int, bool]:
    return proof["member"], proof.get("generation", 0), not proof.get("parked", False)


def compare_events(a: list[dict[str, Any]], b: list[dict[str, Any]], told: Told) -> None:
    """Compare two journals, event by event. Kinds of events that only one of them has are notes."""
    kinds = {e["event"] for e in a}, {e["event"] for e in b}
    for kind in sorted(kinds[0] ^ kinds[1]):
        told.note(f"events {kind} only in {'A' if kind in kinds[0] else 'B'}")
    both = kinds[0] & kinds[1]
    for needed in ("round", "applied", "initial", "end"):
        if needed in kinds[0] ^ kinds[1]:
            told.differ(f"events {needed}", needed in kinds[0], needed in kinds[1])
    a, b = (sorted_proofs([e for e in events if e["event"] in both]) for events in (a, b))
    orders = [e["event"] for e in a], [e["event"] for e in b]
    if orders[0] != orders[1]:
        at = next((i for i, (x, y) in enumerate(zip(*orders, strict=False)) if x != y), min(len(a), len(b)))
        told.differ("order of events", f"{len(a)}, at {at}: {orders[0][at : at + 3]}", orders[1][at : at + 3])
    for kind in sorted(both):
        compare([e for e in a if e["event"] == kind], [e for e in b if e["event"] == kind], kind, told)


def compare_tensors(a: dict[str, Tensors], b: dict[str, Tensors], told: Told) -> None:
    """Compare the members by number, the remembered states by content."""
    for file in sorted(a.keys() | b.keys()):
        if not file.startswith("policy"):
            continue
        if file not in a or file not in b:
            told.differ(f"checkpoint {file}", file in a, file in b)
            continue
        for name in sorted(a[file].keys() | b[file].keys()):
            if a[file].get(name) != b[file].get(name):
                part = name.partition(".")[0]
                values = [str(side[file].get(name, "missing")) for side in (a, b)]
                told.differ(f"checkpoint {part}.* of {file}", f"{name}: {values[0]}", values[1])
    kept = [
        Counter(json.dumps(t, sort_keys=True) for f, t in s.items() if not f.startswith("policy"))
        for s in (a, b)
    ]
    if kept[0] != kept[1]:
        told.differ("remembered states", *([f for f in s if not f.startswith("policy")] for s in (a, b)))


def read_tensors(file: Path) -> Tensors:
    """Return name -> [dtype, shape, hash of the bytes] of a safetensors file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    body = content[8 + length :]
    found: Tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            found[name] = [entry["dtype"], entry["shape"], hashlib.sha256(body[first:last]).hexdigest()]
    return found


def read_run(folder: Path) -> dict[str, Any]:
    """Return what is compared of a run. Raises ValueError if it has no checkpoint."""
    runs = str(folder.parent)
    journal = (folder / "journal.jsonl").read_text().replace(runs, "OUT")
    events = [json.loads(line) for line in journal.splitlines()]
    kept = [e for e in events if e["event"] not in BY_THE_CLOCK]
    kept += [e for e in events if e["event"] == "progress"][-1:]
    checkpoints = sorted((folder / "checkpoints").glob("at_*"), key=lambda path: int(path.name[3:]))
    if not checkpoints:
        raise ValueError(f"no checkpoint in {folder}")
    files = sorted(checkpoints[-1].glob("*.safetensors"))
    return {
        "events": [strip(e) for e in kept],
        "summary": strip(json.loads((folder / "summary.json").read_text())),
        "checkpoint": checkpoints[-1].name,
        "tensors": {file.stem: read_tensors(file) for file in files},
    }


def strip(value: Any) -> Any:
    """Leave out what is measured by the clock."""
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if not is_time(k)}
    return [strip(v) for v in value] if isinstance(value, list) else value


def environment(checkout: Path, kind: Kind, scratch: Path) -> dict[str, str]:
    """Return the environment variables of a run of a checkout."""
    paths = [checkout, *([certain_dmlab(checkout, scratch)] if kind.dmlab else [])]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    own = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "XDG_CACHE_HOME": str(scratch / "cache")}
    return {**os.environ, **one_thread, **own, "DMLAB_STANDIN_LOG": str(scratch / "dmlab_calls")}


def certain_dmlab(checkout: Path, scratch: Path) -> Path:
    """Return a folder with the stand-in of the tests for DeepMind Lab, but nothing in it is left to the clock."""
    standin = next((checkout / "tests").rglob("deepmind_lab.py")).read_text()
    (scratch / "dmlab").mkdir(exist_ok=True)
    (scratch / "dmlab" / "deepmind_lab.py").write_text(standin.replace("time.time_ns()", "1"))
    return scratch / "dmlab"


def run(checkout: Path, kind: Kind, folder: Path) -> dict[str, Any]:
    """Train a kind with a checkout and return what is compared. Raises ValueError if a command fails."""
    folder.mkdir(parents=True)
    python = checkout / ".venv" / "bin" / "python"
    for words in kind.commands:
        command = [str(python), "-m", "pbt_rl", *(word.replace("OUT", str(folder)) for word in words)]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environment(checkout, kind, folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ValueError(f"exit code {done.returncode} of {checkout}: {' | '.join(said[-4:])}")
    return read_run(folder / "x")


def shown(kind: Kind, result: dict[str, Any]) -> dict[str, int]:
    """Return how often a run shows what its kind is for."""
    return {name: count(result["events"]) for name, count in kind.shows.items()}


def compare_runs(a: dict[str, Any], b: dict[str, Any]) -> Told:
    """Compare what was read of two runs."""
    told = Told()
    compare_events(a["events"], b["events"], told)
    compare(a["summary"], b["summary"], "summary", told)
    if a["checkpoint"] != b["checkpoint"]:
        told.differ("last checkpoint", a["checkpoint"], b["checkpoint"])
    compare_tensors(a["tensors"], b["tensors"], told)
    return told


def recorded(folder: Path, name: str) -> Callable[[Kind, Path], dict[str, Any]]:
    """Return a function that reads what was recorded of a kind. It raises ValueError if the kind is another now."""

    def read(kind: Kind, _scratch: Path) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        if content["commands"] != [list(words) for words in kind.commands]:
            raise ValueError(f"{folder / name}.json was recorded with other options: record it again")
        result: dict[str, Any] = content["result"]
        return result

    return read


def write_down(folder: Path, name: str, kind: Kind, result: dict[str, Any]) -> None:
    """Record what is compared of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"commands": kind.commands, "result": result}
    (folder / f"{name}.json").write_text(json.dumps(content))


def chosen(text: str) -> list[str]:
    """Return the names of the kinds to run. Raises SystemExit for unknown ones."""
    names = list(dict.fromkeys(name for name in text.split(",") if name)) or list(KINDS)
    if unknown := [name for name in names if name not in KINDS]:
        sys.exit(f"--kinds {','.join(unknown)}: there are {', '.join(KINDS)}")
    return names


def check(names: Iterable[str], args: argparse.Namespace, out: Path) -> int:
    """Run, compare and print all kinds; return the number of those that fail."""
    failed = total = 0
    for name in names:
        kind, began, lines = KINDS[name], time.monotonic(), []
        total += 1
        try:
            if args.against:
                a = recorded(args.against, name)(kind, out)
                b = run(args.checkouts[0], kind, out / "b" / name)
            else:
                a = run(args.checkouts[0], kind, out / "a" / name)
                b = a if args.record else run(args.checkouts[1], kind, out / "b" / name)
            counts = shown(kind, a)
            lines = [f"SHOWS NO {text}" for text, count in counts.items() if not count]
            told = compare_runs(a, b)
            lines += told.lines()
            good = all(counts.values()) and not told.differences
            what = ", ".join(f"{count} {text}" for text, count in counts.items())
            what += f"; {len(a['events'])} events, {sum(map(len, a['tensors'].values()))} tensors"
            if args.record and good:
                write_down(args.record, name, kind, a)
        except (ValueError, OSError, KeyError, subprocess.TimeoutExpired) as error:
            good, what = False, f"{type(error).__name__}: {error}"
        failed += not good
        verdict = "FAILED" if not good else "written" if args.record else "same"
        print(f"{verdict:8}{name:24}{time.monotonic() - began:5.0f} s  {what}", flush=True)
        for line in lines:
            print(f"        {line}", flush=True)
    print(f"{total - failed} of {total} kinds are {'written' if args.record else 'the same'}")
    return failed


def main(words: list[str] | None = None) -> int:
    """Read the command line, run, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkouts", nargs="*", type=lambda text: Path(text).resolve(), help="one or two folders"
    )
    parser.add_argument("--kinds", default="", help="comma-separated; default: all")
    parser.add_argument(
        "--out", type=Path, help="folder in which the runs lie (default: that of temporary files)"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove the runs")
    parser.add_argument("--record", type=Path, help="write what is compared of A into this folder")
    parser.add_argument("--against", type=Path, help="A is what was recorded in this folder")
    parser.add_argument("--list", action="store_true", help="print the names of the kinds")
    args = parser.parse_args(words)
    if args.list:
        print("\n".join(KINDS))
        return 0
    needed = 1 if args.record or args.against else 2
    if len(args.checkouts) != needed:
        parser.error(f"give {needed} checkout{'s' * (needed > 1)}")
    for checkout in args.checkouts:
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv/bin/python")
    names = chosen(args.kinds)
    out = Path(tempfile.mkdtemp(prefix="same_runs_", dir=args.out))
    try:
        failed = check(names, args, out)
    finally:
        if args.keep:
            print(f"the runs: {out}")
        else:
            shutil.rmtree(out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prove that two checkouts decide the same and learn the same weights, bit for bit, in serial runs of many kinds.

    python scripts/lab/same_runs.py CHECKOUT_A CHECKOUT_B [--kinds a,b] [--out DIR] [--keep]
    python scripts/lab/same_runs.py --record DIR CHECKOUT_A         write down what its runs are
    python scripts/lab/same_runs.py --against DIR CHECKOUT_B        compare with that
    python scripts/lab/same_runs.py --list                          the kinds

Each checkout trains with its own .venv/bin/python, one run after the other. What is compared, by content:

    the events of the journal, but for those written by the clock: decisions with donor, remembered generation and
    values, objectives, frames, slots, matchups; the last progress; members, best member and values of the summary;
    every tensor of every member and of every remembered state in the last checkpoint: name, type, shape, bits.

Times and measured speeds are left out. What only B has, and a reason in other words, is a note and no difference. Each
kind (`same_runs_kinds.py`) has to show in A what it is for, so that equal runs say something. The exit code is 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from same_runs_kinds import KINDS, Kind, crossings

PATIENCE_SECONDS = 300.0
BY_THE_CLOCK = {"start", "checkpoint", "progress", "evaluation", "lost"}
LEFT_OUT = re.compile("time|seconds|milliseconds|per_second|busy|bytes|path|folder|^elo$|^win_rate$")
"""Fields by the clock and of the machine, in any depth; the summary has ratings as they were last shown."""
NOTHING: tuple[Any, ...] = (None, False, [], {}, "", "NaN")
NOTE = "note    "
MOST_LINES = 12


def differences(a: Any, b: Any, place: str) -> Iterator[str]:
    """Yield where two values of JSON differ; what is no difference begins with NOTE."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(name for name in b if name not in a)]:
            inner = f"{place}.{name}"
            if name not in b and a[name] not in NOTHING:
                yield f"{inner} only in A"
            elif name not in a or name not in b:
                yield f"{NOTE}{inner} only in {'A' if name in a else 'B'}"
            elif name == "reason":
                yield from [f"{NOTE}{inner} in other words"] * (a[name] != b[name])
            else:
                yield from differences(a[name], b[name], inner)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{place}, number: {len(a)} / {len(b)}"
        for one, other in zip(a, b, strict=False):
            yield from differences(one, other, f"{place}[]")
    elif a != b or isinstance(a, bool) != isinstance(b, bool):
        yield f"{place}: {a!r:.90} / {b!r:.90}"


def compare_runs(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Compare what was read of two runs."""
    both = {e["event"] for e in a["events"]} & {e["event"] for e in b["events"]}
    found = [f"events {kind} only in A" for kind in {e["event"] for e in a["events"]} - both]
    found += [f"{NOTE}events {kind} only in B" for kind in {e["event"] for e in b["events"]} - both]
    ours, theirs = (sorted_proofs([e for e in run["events"] if e["event"] in both]) for run in (a, b))
    if [e["event"] for e in ours] != [e["event"] for e in theirs]:
        found.append(f"order of events: {len(ours)} / {len(theirs)}")
    for kind in sorted(both):
        of_a, of_b = ([e for e in events if e["event"] == kind] for events in (ours, theirs))
        found += differences(of_a, of_b, kind)
    found += differences(a["summary"], b["summary"], "summary")
    found += differences(a["checkpoint"], b["checkpoint"], "last checkpoint")
    return [*found, *differences(by_content(a["tensors"]), by_content(b["tensors"]), "checkpoint")]


def by_content(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return members by their files, and remembered states, whose files may have other names, by what they hold."""
    remembered = [of for file, of in tensors.items() if not file.startswith("policy")]
    members = {file: of for file, of in tensors.items() if file.startswith("policy")}
    return members | {"remembered": sorted(remembered, key=json.dumps)}


def sorted_proofs(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order proofs that follow each other by member: between two other events their order means nothing."""
    runs: list[list[dict[str, Any]]] = [[]]
    for event in events:
        if event["event"] != "applied" or (runs[-1] and runs[-1][-1]["event"] != "applied"):
            runs.append([])
        runs[-1].append(event)
    return [event for run in runs for event in sorted(run, key=_member_of)]


def _member_of(event: dict[str, Any]) -> tuple[int, int, bool]:
    return event.get("member", 0), event.get("generation", 0), not event.get("parked", False)


def read_tensors(file: Path) -> dict[str, list[Any]]:
    """Return name -> [dtype, shape, hash of the bytes] of a safetensors file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    body = content[8 + length :]
    found = {}
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
    """Leave out what is measured by the clock; NaN is equal to NaN."""
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if not LEFT_OUT.search(k)}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return "NaN" if value != value or value == "nan" else value  # noqa: PLR0124 - NaN alone


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
    text = json.dumps(result["events"])
    found = {name: len(re.findall(pattern, text)) for name, pattern in kind.shows.items()}
    return found | ({"crossings": crossings(result["events"])} if kind.crosses else {})


def recorded(folder: Path, name: str, kind: Kind) -> dict[str, Any]:
    """Return what was recorded of a kind. Raises ValueError if the kind is another now."""
    content = json.loads((folder / f"{name}.json").read_text())
    if content["commands"] != [list(words) for words in kind.commands]:
        raise ValueError(f"{folder / name}.json was recorded with other options: record it again")
    result: dict[str, Any] = content["result"]
    return result | {"events": strip(result["events"]), "summary": strip(result["summary"])}


def check(name: str, args: argparse.Namespace, out: Path) -> bool:
    """Run, compare and print a kind; return whether all is the same."""
    kind, began, lines = KINDS[name], time.monotonic(), []
    try:
        if args.against:
            a = recorded(args.against, name, kind)
            b = run(args.checkouts[0], kind, out / "b" / name)
        else:
            a = run(args.checkouts[0], kind, out / "a" / name)
            b = a if args.record else run(args.checkouts[1], kind, out / "b" / name)
        counts, found = shown(kind, a), Counter(compare_runs(a, b))
        wrong = [f"DIFFERS {line} ({n} x)" for line, n in found.items() if not line.startswith(NOTE)]
        wrong = [f"SHOWS NO {text}" for text, count in counts.items() if not count] + wrong
        lines = wrong[:MOST_LINES] + [f"... and {len(wrong) - MOST_LINES} more"] * (len(wrong) > MOST_LINES)
        lines += [f"{line} ({n} x)" for line, n in found.items() if line.startswith(NOTE)]
        good = not wrong
        what = ", ".join(f"{count} {text}" for text, count in counts.items())
        what += f"; {len(a['events'])} events, {sum(map(len, a['tensors'].values()))} tensors"
        if args.record and good:
            args.record.mkdir(parents=True, exist_ok=True)
            (args.record / f"{name}.json").write_text(json.dumps({"commands": kind.commands, "result": a}))
    except (ValueError, OSError, KeyError, subprocess.TimeoutExpired) as error:
        good, what = False, f"{type(error).__name__}: {error}"
    verdict = "FAILED" if not good else "written" if args.record else "same"
    print(f"{verdict:8}{name:24}{time.monotonic() - began:5.0f} s  {what}", flush=True)
    print("".join(f"        {line}\n" for line in lines), end="", flush=True)
    return good


def main(words: list[str] | None = None) -> int:
    """Read the command line, run, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("checkouts", nargs="*", type=lambda text: Path(text).resolve(), help="one or two folders")
    add("--kinds", default=",".join(KINDS), help="comma-separated; default: all")
    add("--out", type=Path, help="folder in which the runs lie (default: that of temporary files)")
    add("--keep", action="store_true", help="do not remove the runs")
    add("--record", type=Path, help="write what is compared of A into this folder")
    add("--against", type=Path, help="A is what was recorded in this folder")
    add("--list", action="store_true", help="print the names of the kinds")
    args = parser.parse_args(words)
    if args.list:
        print("\n".join(KINDS))
        return 0
    needed, names = 1 if args.record or args.against else 2, args.kinds.split(",")
    if len(args.checkouts) != needed:
        parser.error(f"give {needed} checkout{'s' * (needed > 1)}")
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"--kinds {','.join(unknown)}: there are {', '.join(KINDS)}")
    out = Path(tempfile.mkdtemp(prefix="same_runs_", dir=args.out))
    try:
        good = [check(name, args, out) for name in names]
    finally:
        if args.keep:
            print(f"the runs: {out}")
        else:
            shutil.rmtree(out)
    print(f"{sum(good)} of {len(good)} kinds are {'written' if args.record else 'the same'}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

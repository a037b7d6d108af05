"""Fault injection: kill and resume runs of each mode, and check for hangs, leaks, lost and duplicate records.

    python scripts/storm.py --kills 200              # a few seconds per signal on an idle machine
    python scripts/storm.py --kills 1 --seed 17      # repeat the run of a failure
    python scripts/storm.py --kills 40 --simulator   # runs of a device simulator

The seed of a run determines mode, environment, controller and devices. A run has several *lives*: a life is a process
of `pbt-rl train`, and the next life repeats the command, which resumes the run. In each life, some processes get a
signal (a *blow*) at random moments: start, training, checkpoint, replacement, end. A life that survives its last blow
ends with SIGTERM. The last life of a run has no blows, and ends with SIGTERM, too. Expected effects:

    process      SIGKILL               SIGSTOP, SIGCONT later   SIGSTOP forever               SIGTERM
    actor        the run continues     the run continues        restarted
    drawing      the run continues     the run continues        the run continues
    keeper       its child is killed
    learner      replaced              the run continues        replaced; too often: the run ends
    supervisor   the run ends          the run continues        killed later                  saves and ends
    everything   the run ends

Checks after each life:

- no process, shared memory or lock remains
- the life resumed the run from the newest checkpoint
- if SIGKILL ended the life: the newest checkpoint was at most `--save-every-seconds` plus SLACK_SECONDS old when the
  last blow came. On a slow disk, twice the time to write a checkpoint is added.

During training, storm_counting.py checks each learned step of toy/counting. Checks after each run: journal, curves,
audit, files, and an evaluation of the newest checkpoint. The script prints a table, and the seeds of failed runs. The
exit code is 1 after a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import storm_checks as checks
from storm_counting import INEXACT

from pbt_rl.record.journal import read_journal
from pbt_rl.record.run_lock import is_held

SCRIPTS = Path(__file__).resolve().parent
HERE = {"PYTHONPATH": f"{SCRIPTS.parent}:{SCRIPTS}"}
SAVE_SECONDS = 2.0
"""Interval between checkpoints."""
MOMENTS = ("start", "training", "checkpoint", "replacement", "end")
NEVER, TERM = float("inf"), -1.0
SLACK_SECONDS = 6.0
DEADLINE_SECONDS = 120.0
"""Timeout of a resume, a checkpoint or an end."""
CLEAN_SECONDS = 5.0 + 15.0
"""Timeout for the end of a run's processes. 15 s are for an fsync to a slow disk, which SIGKILL does not interrupt."""
TIMEOUT_SECONDS = 10.0
"""Heartbeat timeout of actors and learners."""
POLL_SECONDS, FAST_POLL_SECONDS = 0.05, 0.001

COUNTING = ("--env=toy/counting", "--algo=storm_counting:EXACT")
ENVIRONMENTS = (COUNTING, COUNTING, ("--env=toy/shaped",), ("--env=gym/CartPole-v1",))
PBT = ("--controller=pbt", "--pbt.min-episodes=1", "--pbt.start-frames=500", "--pbt.period-frames=500")
CONTROLLERS = (
    PBT,
    (*PBT, "--pbt.exploit=backtrack", "--num-policies=5"),
    ("--controller=hypertrick", "--search.phases=40", "--search.phase-frames=2000"),
    ("--controller=hyperband", "--num-policies=6", "--search.resource=9", "--search.phase-frames=4000"),
)
LAYOUTS = ((), ("--slots=2", "--slot-frames=1500"), ("--devices=cpu,cpu",))
COMMON = ("--num-policies=4", "--train-for-frames=1000000000")
ACTORS = ("--actors=2", "--learner.batch=128")
SMALL = ("--env-option=limit=20", "--rows=32", "--learner.rollout=8", "--model.hidden=8")
SIMULATOR = ("--env=tensors/pendulum", *SMALL)
"""Options of a run with a device simulator. Such a run has no actors. Its mode is sync or serial."""


@dataclass(frozen=True)
class Blow:
    """Signal to a process at a moment of a run. victim: role of the process."""

    moment: str
    victim: str
    seconds: float
    """Seconds from SIGSTOP to SIGCONT. 0 means SIGKILL, NEVER means SIGSTOP without SIGCONT, TERM means SIGTERM."""

    @property
    def name(self) -> str:
        """Name of the signal, which is a column of the table."""
        return {0.0: "SIGKILL", NEVER: "SIGSTOP", TERM: "SIGTERM"}.get(self.seconds, "SIGSTOP, SIGCONT")


@dataclass
class Tally:
    """Counts and failures of all runs."""

    blows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(victim, signal) -> number of blows."""
    moments: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    anew: int = 0
    """Number of lives that restarted a run, because the run was killed before its first checkpoint."""
    worst_loss_seconds: float = 0.0
    losses: int = 0
    failures: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)

    def show(self) -> str:
        """Format the table of blows and the counts."""
        columns = ("SIGKILL", "SIGSTOP, SIGCONT", "SIGSTOP", "SIGTERM")
        victims = sorted({victim for victim, _ in self.blows})

        def line(name: str, cells: Iterable[object]) -> str:
            return f"{name:12}" + "".join(f"{cell:>18}" for cell in cells)

        lines = [line("victim", columns), *(line(v, [self.blows[v, c] for c in columns]) for v in victims)]
        for name, counts in (("moments", self.moments), ("ends", self.ends), ("runs", self.runs)):
            lines.append(f"{name}: " + ", ".join(f"{what} {n}" for what, n in sorted(counts.items())))
        lines.append(
            f"{self.blows.total()} blows, {self.resumes} resumes, {self.anew} restarts; worst loss "
            f"{self.worst_loss_seconds:.1f} s of {self.losses} (saved every {SAVE_SECONDS:.0f} s); "
            f"{len(self.failures)} failures"
        )
        return "\n".join([*lines, *self.failures])


def draw_blows(rng: random.Random, *, serial: bool) -> Iterator[Blow]:
    """Draw the blows of one life at random. The last blow may end the life."""
    kept = ("drawing",) if serial else ("actor", "actor", "keeper", "drawing")
    fatal = () if serial else ("learner", "learner")
    for _ in range(rng.randrange(6)):
        victim = rng.choice(kept)
        yield Blow(rng.choice(MOMENTS[:4]), victim, 0.0 if victim == "keeper" else _draw_pause(rng))
    victim = rng.choice((*fatal, "supervisor", "supervisor", "everything"))
    seconds = 0.0 if victim == "everything" else _draw_pause(rng)
    if victim == "supervisor" and rng.random() < 0.25:
        seconds = TERM
    yield Blow(rng.choice(MOMENTS), victim, seconds)


def _draw_pause(rng: random.Random) -> float:
    """Draw `Blow.seconds` at random, for any signal except SIGTERM."""
    return rng.choice((0.0, 0.0, rng.uniform(0.1, 2.0), NEVER))


class Failed(Exception):  # noqa: N818 - the name states the condition
    """Failed check. The message describes it."""


class Run:
    """Run with several lives."""

    def __init__(
        self, seed: int, home: Path, tally: Tally, mode: str, *, play: bool = True, simulator: bool = False
    ) -> None:
        self._tally, self._play = tally, play
        self._rng = rng = random.Random(seed)
        drawn = rng.choice(("async", "async", "sync", "serial"))
        self._mode = mode or (drawn if not simulator or drawn == "serial" else "sync")
        environment = rng.choice(ENVIRONMENTS)
        environment = SIMULATOR if simulator else (*ACTORS, *environment)
        controller = rng.choice(CONTROLLERS)
        layout = rng.choice(LAYOUTS[:2] if self._mode == "serial" else LAYOUTS)
        env = next(one for one in environment if one.startswith("--env="))
        self.about = " ".join([self._mode, env, *controller[:1], *layout[:1]])
        self._folder = home / "runs" / "x"
        self._home, self._mark = home, f"{os.getpid()}-{seed}"
        self._command = [sys.executable, "-m", "pbt_rl", "train", "--name=x", f"--mode={self._mode}"]
        self._command += [f"--seed={seed}", f"--save-every-seconds={SAVE_SECONDS}", *COMMON, *environment]
        self._command += [f"--actor-timeout-seconds={TIMEOUT_SECONDS}", "--max-actor-restarts=1000"]
        self._command += [f"--learner-timeout-seconds={TIMEOUT_SECONDS}"]
        self._command += [*controller, *layout, *(() if rng.random() < 0.5 else ("--no-figures",))]
        self._process: subprocess.Popen[bytes]
        self._frozen_at = 0.0
        """Time of the first SIGSTOP in this life since the newest checkpoint."""
        self._learner_hit = False

    # -- lives --------------------------------------------------------------------------------------------------

    def live(self, lives: int, kills_left: Callable[[], int]) -> None:
        """Run and check `lives` lives with blows, and a last life without blows. Raises Failed.

        kills_left: function that returns the number of remaining blows.
        """
        self._memory = checks.shared_memory()
        try:
            for _ in range(lives):
                if kills_left() <= 0:
                    break
                self._start()
                for blow in draw_blows(self._rng, serial=self._mode == "serial"):
                    if kills_left() <= 0 or self._over():
                        break
                    self._strike(blow)
                self._end_life()
            self._start()
            self._await_training()
            self._await_checkpoint()
            self._end_life()
        finally:
            _send(checks.processes(self._mark), signal.SIGKILL)
        self._check_record()

    def _start(self) -> None:
        newest = checks.newest_checkpoint(self._folder)
        self._before = None if newest is None else checks.clock(newest)
        self._frozen_at = 0.0
        self._learner_hit = self._checked_start = self._asked_to_end = False
        self._had_events = bool(self._events())
        self._started_at = time.time()
        with (self._home / "out.txt").open("wb") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | HERE | {checks.MARK: self._mark, "OMP_NUM_THREADS": "1"},
            )

    def _end_life(self) -> None:
        """End a life, and check for errors, leaks and lost training time. Raises Failed."""
        if not self._over():
            self._ask_to_end()
            self._wait("an end after SIGTERM", self._over, DEADLINE_SECONDS)
        ended_at = self._frozen_at or time.time()
        code = self._process.returncode
        self._tally.ends[str(code)] += 1
        expected = {0, 128 + signal.SIGTERM, -signal.SIGKILL}
        events = self._events()
        if not self._out or (events and events[-1]["event"] == "end"):  # SIGTERM has no handler
            expected.add(-signal.SIGTERM)
        if code not in expected and not (code == 1 and self._learner_hit):
            raise Failed(f"exit code {code}")
        if INEXACT in self._out or ("Traceback" in self._out and not self._learner_hit):
            raise Failed("an error")
        self._wait("an end of its processes", lambda: not checks.processes(self._mark), CLEAN_SECONDS)
        left = checks.unmapped(checks.shared_memory() - self._memory)
        if left:
            raise Failed(f"in /dev/shm: {left}")
        if self._folder.exists() and is_held(self._folder):
            raise Failed("the folder is still locked")
        if code == -signal.SIGKILL:
            self._note_loss(ended_at)

    def _note_loss(self, ended_at: float) -> None:
        """Check the lost training time: from the newest checkpoint (or the first event) of this life to `ended_at`."""
        events = [e for e in self._events() if e["event"] in ("round", "applied", "progress", "checkpoint")]
        began = [e["time"] for e in events if e["time"] > self._started_at]
        newest = checks.newest_checkpoint(self._folder)
        saved = 0.0 if newest is None else checks.state_time(newest)
        since = max([*began[:1], *[saved] * (saved > self._started_at)], default=None)
        if since is None:
            return
        loss = ended_at - since
        self._tally.losses += 1
        self._tally.worst_loss_seconds = max(self._tally.worst_loss_seconds, loss)
        written = [e["seconds"] for e in events if e["event"] == "checkpoint"]
        slow_disk = 2 * max([seconds for seconds in written if seconds > SAVE_SECONDS], default=0.0)
        if loss > SAVE_SECONDS + SLACK_SECONDS + slow_disk:
            raise Failed(f"{loss:.1f} s are lost")

    # -- blows --------------------------------------------------------------------------------------------------

    def _strike(self, blow: Blow) -> None:
        if not self._await_moment(blow.moment):
            return
        processes = checks.processes(self._mark)
        mine = [pid for pid, line in processes.items() if blow.victim in (checks.kind(line), "everything")]
        if not mine:
            return
        victims = mine if blow.victim == "everything" else [self._rng.choice(mine)]
        self._tally.blows[blow.victim, blow.name] += 1
        self._tally.moments[blow.moment] += 1
        self._learner_hit |= blow.victim in ("learner", "keeper")
        number = {0.0: signal.SIGKILL, TERM: signal.SIGTERM}.get(blow.seconds, signal.SIGSTOP)
        if number == signal.SIGSTOP and blow.victim in ("learner", "supervisor"):
            self._frozen_at = self._frozen_at or time.time()
        if number == signal.SIGTERM:
            self._ask_to_end()
        else:
            _send(victims, number)
        if 0 < blow.seconds < NEVER:
            time.sleep(blow.seconds)
            _send(victims, signal.SIGCONT)
        if blow.moment == "end" and 0 < blow.seconds < NEVER:
            self._frozen_at = 0.0
        self._wait_out(blow, victims)

    def _wait_out(self, blow: Blow, victims: list[int]) -> None:
        """Wait for the effect of a blow: the end of the life, or a new checkpoint."""
        if blow.victim == "supervisor" and blow.seconds == NEVER:
            time.sleep(self._rng.uniform(0, 1))
            _send(victims, signal.SIGKILL)
        if blow.victim in ("supervisor", "everything") and blow.seconds in {0.0, NEVER}:
            self._wait("an end after SIGKILL", self._over, CLEAN_SECONDS)
        elif blow.seconds == TERM:
            self._wait("an end after SIGTERM", self._over, DEADLINE_SECONDS)
        elif blow.moment != "end":
            self._await_checkpoint()
            if not self._over():
                self._frozen_at = 0.0

    # -- moments ------------------------------------------------------------------------------------------------

    def _await_moment(self, moment: str) -> bool:
        """Wait for one of MOMENTS. Return True if the life has not ended before."""
        if moment == "start":
            time.sleep(self._rng.uniform(0, 6) if time.time() - self._started_at < 1 else 0)
        else:
            self._await_training()
        match moment:
            case "training":
                time.sleep(self._rng.uniform(0, SAVE_SECONDS))
            case "checkpoint":
                folder = self._folder / "checkpoints"
                self._watch_for(lambda: any(folder.glob("*.partial")), 4 * SAVE_SECONDS)
                time.sleep(self._rng.uniform(0, 0.05))
            case "replacement":
                journal = self._folder / "journal.jsonl"
                size = journal.stat().st_size
                decided = lambda: b'"event": "round"' in journal.read_bytes()[size:]  # noqa: E731
                self._watch_for(decided, 2 * SAVE_SECONDS)
                time.sleep(self._rng.uniform(0, 0.05))
            case "end":
                self._ask_to_end()
                time.sleep(self._rng.uniform(0, 0.7))
        return not self._over()

    def _ask_to_end(self) -> None:
        """Send SIGTERM, but only once. (A second SIGTERM might come after the process has removed its handler.)"""
        if not self._asked_to_end:
            self._asked_to_end = True
            self._process.terminate()

    def _await_training(self) -> None:
        """Wait until this life has trained, and check that the life resumed the run at the newest checkpoint."""
        if self._checked_start or self._over():
            return
        self._wait("training", lambda: self._over() or self._has_trained(), DEADLINE_SECONDS)
        if not self._has_trained():
            return
        self._checked_start = True
        resumed = [e for e in self._events() if e["event"] == "resume" and e["time"] > self._started_at]
        if self._before is None:
            self._tally.anew += self._had_events
            return
        if not resumed:
            raise Failed("the run was not resumed")
        self._tally.resumes += 1
        if resumed[0]["frames"] < self._before:
            raise Failed(f"the run resumed at {resumed[0]['frames']} frames instead of {self._before}")

    def _has_trained(self) -> bool:
        newest = checks.newest_checkpoint(self._folder)
        return newest is not None and newest.manifest.time > self._started_at

    def _await_checkpoint(self) -> None:
        """Wait for a new checkpoint, which shows that the run continues, or for the end of the command."""
        now = time.time()
        self._wait("a checkpoint", lambda: self._over() or self._saved_since(now), DEADLINE_SECONDS)

    def _saved_since(self, begin: float) -> bool:
        newest = checks.newest_checkpoint(self._folder)
        return newest is not None and checks.state_time(newest) > begin

    def _wait(self, what: str, happened: Callable[[], bool], seconds: float) -> None:
        if not _within(seconds, happened):
            left = {pid: checks.kind(line) for pid, line in checks.processes(self._mark).items()}
            raise Failed(f"hang: no {what} within {seconds:.0f} s; processes {left}")

    def _watch_for(self, happened: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition that may hold only briefly, by fast polling. Stop at the end of the life."""
        _within(seconds, lambda: self._over() or happened(), FAST_POLL_SECONDS)

    def _over(self) -> bool:
        return self._process.poll() is not None

    @property
    def _out(self) -> str:
        return (self._home / "out.txt").read_text(errors="replace")

    def _events(self) -> list[dict[str, Any]]:
        try:
            return read_journal(self._folder / "journal.jsonl")
        except FileNotFoundError:
            return []

    # -- the whole run --------------------------------------------------------------------------------------------

    def _check_record(self) -> None:
        """Check the files of the run. Raises Failed."""
        folder = self._folder
        reasons = checks.left_files(folder) + checks.journal_reasons(folder)
        reasons += checks.audit_reasons(folder) + checks.curve_reasons(folder) + checks.broken(folder)
        if self._play:
            words = [sys.executable, "-m", "pbt_rl", "eval", str(folder), "--episodes=1", "--trust"]
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
            options |= {"env": os.environ | HERE, "timeout": DEADLINE_SECONDS, "check": False}
            played = subprocess.run(words, **options)  # noqa: PLW1510 - among the options
            reasons += [f"eval: {played.stderr}"] if played.returncode else []
        if reasons:
            raise Failed("; ".join(reasons))

    def told(self) -> str:
        """Return the last lines of the run's output."""
        return "\n    ".join(["", *self._out.splitlines()[-25:]]) if (self._home / "out.txt").exists() else ""


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _within(seconds: float, happened: Callable[[], bool], poll_seconds: float = POLL_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_seconds)
    return True


def storm(kills: int, seed: int, lives: int, seconds: float, mode: str = "", **more: bool) -> Tally:
    """Make runs one after the other until the number of blows is `kills`, or until the time limit. Return the counts.

    The folder of a failed run is not deleted. lives: number of lives of each run before the last life.
    play: True to evaluate a member of each run with `pbt-rl eval`. simulator: True to use a device simulator.
    """
    tally = Tally()
    deadline = time.monotonic() + seconds
    while tally.blows.total() < kills and time.monotonic() < deadline:
        folder = Path(tempfile.mkdtemp(prefix=f"storm-{seed}-"))
        run = Run(seed, folder, tally, mode, **more)
        print(f"seed {seed}: {run.about} ({tally.blows.total()} blows so far)", flush=True)
        tally.runs[run.about] += 1
        left = lambda: kills - tally.blows.total() if time.monotonic() < deadline else 0  # noqa: E731
        try:
            run.live(lives, left)
        except Failed as failed:
            tally.failures.append(f"seed {seed} ({run.about}, {folder}): {failed}{run.told()}")
            print(f"FAILED {tally.failures[-1]}", flush=True)
        else:
            shutil.rmtree(folder)
        seed += 1
    return tally


def main() -> int:
    """Make the runs, and print the counts. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--kills", type=int, default=200, help="total number of blows")
    add("--seed", type=int, default=0, help="seed of the first run; later runs have the next seeds")
    add("--lives", type=int, default=4, help="number of lives of each run before the last life")
    add("--minutes", type=float, default=60.0, help="time after which no run is started")
    add("--mode", choices=("async", "sync", "serial"), default="", help="mode of all runs (default: random)")
    add("--simulator", action="store_true", help="use a device simulator")
    add("--no-play", action="store_true", help="skip `pbt-rl eval`")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the `finally` of `live` then ends the run
    more = {"play": not given.no_play, "simulator": given.simulator}
    tally = storm(given.kills, given.seed, given.lives, 60 * given.minutes, given.mode, **more)
    print(tally.show())
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

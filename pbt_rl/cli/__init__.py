"""The command line `pbt-rl`: one module per command, imported when the command is called.

A module has `run(arguments) -> exit code`. Nothing imports anything from here but the commands.
"""

from __future__ import annotations

import atexit
import difflib
import itertools
import multiprocessing
import os
import re
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pbt_rl.processes.paths import working_directory_last
from pbt_rl.registry import Command, EntryPointError, Registry
from pbt_rl.version import __version__ as version

COMMANDS = (
    Command(
        "train",
        "pbt_rl.cli.train",
        "--env atari/pong ...",
        "train a population (train --help lists the usual options; --show prints the plan only)",
    ),
    Command("resume", "pbt_rl.cli.resume", "RUN", "continue a run from its last checkpoint"),
    Command("eval", "pbt_rl.cli.evaluate", "RUN", "play a trained member and print its score"),
    Command("envs", "pbt_rl.cli.envs", "", "list the environments, what is missing and how to install it"),
    Command(
        "audit",
        "pbt_rl.cli.report:run_audit",
        "RUN",
        "decide a recorded run again and compare the decisions bit for bit",
    ),
    Command("envs check", "pbt_rl.cli.envs:run_check", "ENV", "step an environment and report its mistakes"),
    Command("dmlab-cache", "pbt_rl.cli.envs:run_dmlab_cache", "", "build maps of DeepMind Lab beforehand"),
    Command(
        "export",
        "pbt_rl.cli.evaluate:run_export",
        "RUN --format onnx",
        "write a trained member for others (onnx, safetensors, rsl_rl)",
    ),
    Command(
        "runs",
        "pbt_rl.cli.runs",
        "[DIR]",
        "list the runs in a folder (default: runs): env, members, frames, best, state, age",
    ),
    Command(
        "prove",
        "pbt_rl.cli.prove",
        "--name NAME ...",
        "train arms (pbt, random draws, defaults...) on the same seeds, score them by fresh "
        "games, and say whether one helped",
    ),
    Command(
        "report",
        "pbt_rl.cli.report",
        "RUN...",
        "draw ancestry, schedules, curves...: one HTML page, PNG, CSV; of "
        "several runs, one page that compares them",
    ),
    Command(
        "sweep",
        "pbt_rl.cli.sweep",
        "--name NAME ...",
        "train the same with several seeds and options, one after the other or side by side",
    ),
    Command(
        "watch", "pbt_rl.cli.watch", "RUN", "show a run in the browser as it goes on (or when it is over)"
    ),
)
OTHERS: Registry[Command] = Registry("pbt_rl.commands", "pbt_rl.registry:Command", {})
"""Those of other packages: entry points, each a `Command`."""
EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130
EXIT_SECONDS, EXIT_SECONDS_AT_MOST, CHILD_SECONDS = 5.0, 60.0, 2.0


def main() -> None:
    """Run the command of `sys.argv` and exit with its code. Entry point of `pbt-rl`."""
    _open_closed_streams()
    atexit.register(_end_children)
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        print(f"pbt-rl {version}")
        sys.exit(0)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), end="")
        sys.exit(0 if arguments else EXIT_USER_ERROR)
    try:
        Path.cwd()
    except FileNotFoundError:
        _fail("the working directory has been deleted: cd to another one", EXIT_USER_ERROR)
    working_directory_last()
    # Imported after that, with all that they import: `python -m` has put the working directory first.
    from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed

    try:
        command, rest = _command(arguments)
        runs = {"RUN": 1, "RUN...": len(rest)}.get(command.arguments.partition(" ")[0], 0)
        words = _of_runs(rest[:runs]) + rest[runs:]
        module, _, name = command.module.partition(":")
        code: int = getattr(import_module(module), name or "run")(words)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `pbt-rl train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (ConfigError, EnvSetupError, EntryPointError) as error:
        _fail(str(error), EXIT_USER_ERROR)
    except RunFailed as error:
        _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    except SystemExit as error:  # of an environment, or of the parser
        _end(error.code)
    except Exception:  # noqa: BLE001 - our bug, but what an environment has started must not keep the process
        traceback.print_exc()
        _end(EXIT_FAILED)
    _end(code)


def commands() -> dict[str, Command]:
    """Return name -> command, with those of other packages."""
    return {command.name: command for command in (*COMMANDS, *OTHERS.values())}


def usage() -> str:
    """Return the list of commands."""
    lines = ["usage: pbt-rl COMMAND [OPTIONS]", "", "commands:"]
    for command in commands().values():
        typed = f"{command.name} {command.arguments}".rstrip()
        lines += textwrap.wrap(command.help, 120, initial_indent=f"  {typed:<29}", subsequent_indent=" " * 31)
    lines += ["", "pbt-rl COMMAND --help lists the options of a command; pbt-rl --version prints the version"]
    return "\n".join(lines) + "\n"


def _of_runs(words: list[str]) -> list[str]:
    """Return the words of a command that takes runs: NAME is runs/NAME unless there is something of that name here."""
    found = list(words)
    for at, word in enumerate(itertools.takewhile(lambda word: not word.startswith("-"), words)):
        name = re.split("[@:]", word, maxsplit=1)[0]
        if (
            "/" not in word
            and re.fullmatch(r"\w[\w.-]{0,199}", name)
            and not os.path.lexists(name)
            and name != "runs"
        ):
            found[at] = os.path.join("runs", word)  # noqa: PTH118
    return found


def _command(arguments: list[str]) -> tuple[Command, list[str]]:
    """Return the command, and its arguments. A command may have two words."""
    from pbt_rl.errors import ConfigError

    there, name = commands(), arguments[0]
    if " ".join(arguments[:2]) in there:
        return there[" ".join(arguments[:2])], arguments[2:]
    if name not in there:
        close = ["eval"] if name == "enjoy" else difflib.get_close_matches(name, there, n=1)
        if name.startswith("-"):
            raise ConfigError(f"{name!r} is not a command: write pbt-rl train {' '.join(arguments):.200}")
        hint = f"did you mean {close[0]}? The commands are" if close else "use"
        if name in OTHERS.unusable:
            raise OTHERS.unusable[name]
        raise ConfigError(f"{name!r} is no command: {hint} {', '.join(there)} (pbt-rl --help)")
    return there[name], arguments[1:]


def _fail(message: str, code: int) -> None:
    print(f"pbt-rl: {message}", file=sys.stderr)
    _end(code)


def _end(code: int | str | None) -> NoReturn:
    """Exit, whatever an environment that ran here has started.

    After EXIT_SECONDS, threads and processes that do not end are named and left; after EXIT_SECONDS_AT_MOST, too, if
    nothing is known of what the exit waits for.
    """

    def insist() -> None:
        time.sleep(EXIT_SECONDS)
        if not _is_ending():  # somebody called us, and goes on
            return
        names = {one.name for one in threading.enumerate() if not one.daemon} - {"MainThread"}
        names |= {child.name for child in multiprocessing.active_children()}
        if not names:  # what runs at exit may take long
            time.sleep(EXIT_SECONDS_AT_MOST - EXIT_SECONDS)
            names = {"what it registered with atexit"}
        print(
            f"pbt-rl: what an environment started does not end: {', '.join(sorted(names)[:5])}",
            file=sys.stderr,
        )
        _kill_children()
        os._exit(code if isinstance(code, int) else code is not None)

    threading.Thread(target=insist, daemon=True).start()
    sys.exit(code)


def _end_children() -> None:
    """End what an environment that ran here has started and left, after what it does at exit itself."""
    import psutil  # `pbt-rl --help` needs none

    waited_for = {child.pid for child in multiprocessing.active_children()}
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in waited_for]
    for child in children:
        with suppress(psutil.Error):
            child.terminate()
    psutil.wait_procs(children, CHILD_SECONDS)
    _kill_children(waited_for)


def _kill_children(but: Collection[int | None] = ()) -> None:
    """Kill all children, and theirs. but: ids of processes that are left."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.pid not in but:
                child.kill()


def _is_ending() -> bool:
    """Whether the main thread has ended, or waits for other threads to end, so runs no code of its own any more."""
    main = threading.main_thread()
    frame = sys._current_frames().get(main.ident or 0)  # noqa: SLF001 - there is no other way to see it
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    waits = frame is not None and frame.f_code.co_filename == threading.__file__
    return waits or not main.is_alive()


def _open_closed_streams() -> None:
    """Let streams that were closed (`>&-`) be /dev/null: else the first file that is opened would take their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for as long as the process lives

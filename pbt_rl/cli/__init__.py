"""Command line `pbt-rl`. `COMMANDS` lists the commands and their functions.

A function has the signature (arguments) -> exit code, and by default the name `run`. The module of a function is
imported when the command is called. Other packages of `pbt_rl` must not import this package.
"""

from __future__ import annotations

import atexit
import difflib
import itertools
import multiprocessing
import os
import re
import signal
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

from pbt_rl.processes.keeper import adopt_orphans
from pbt_rl.processes.paths import working_directory_last
from pbt_rl.registry import Command, EntryPointError, Registry
from pbt_rl.version import __version__ as version

COMMANDS = (
    Command(
        "train",
        "pbt_rl.cli.train",
        "--env atari/pong ...",
        "train a population (--help lists the common options; --show only prints the plan)",
    ),
    Command("resume", "pbt_rl.cli.resume", "RUN", "continue a run from its last checkpoint"),
    Command("eval", "pbt_rl.cli.evaluate", "RUN", "evaluate a trained member and print its score"),
    Command("envs", "pbt_rl.cli.envs", "", "list the environments, and how to install missing ones"),
    Command(
        "audit",
        "pbt_rl.cli.report:run_audit",
        "RUN",
        "repeat the decisions of a recorded run and compare them bit for bit",
    ),
    Command("envs check", "pbt_rl.cli.envs:run_check", "ENV", "step an environment and report its mistakes"),
    Command("dmlab-cache", "pbt_rl.cli.envs:run_dmlab_cache", "", "build DeepMind Lab maps before training"),
    Command(
        "export",
        "pbt_rl.cli.evaluate:run_export",
        "RUN --format onnx",
        "export a trained member (onnx, safetensors, rsl_rl)",
    ),
    Command(
        "runs",
        "pbt_rl.cli.runs",
        "[DIR]",
        "list the runs in a folder (default: runs) with frames, best score, state and age",
    ),
    Command(
        "prove",
        "pbt_rl.cli.prove",
        "--name NAME ...",
        "train arms (pbt, random search, defaults...) on the same seeds, evaluate them, and test "
        "whether one is better",
    ),
    Command(
        "report",
        "pbt_rl.cli.report",
        "RUN...",
        "draw ancestry, schedules and curves as an HTML page, PNG and CSV; "
        "several runs are compared on one page",
    ),
    Command(
        "sweep",
        "pbt_rl.cli.sweep",
        "--name NAME ...",
        "train with several seeds and option values, sequentially or in parallel",
    ),
    Command("watch", "pbt_rl.cli.watch", "RUN", "show a running or finished run in the browser"),
)
OTHERS: Registry[Command] = Registry("pbt_rl.commands", "pbt_rl.registry:Command", {})
"""Commands of other installed packages. Each entry point refers to a `Command`."""
EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130
EXIT_SECONDS, EXIT_SECONDS_AT_MOST, CHILD_SECONDS = 5.0, 60.0, 2.0
"""Time limits of `_end`, and time between SIGTERM and SIGKILL of a descendant process."""


def main() -> None:
    """Run the command in `sys.argv` and exit with its exit code. This function is the entry point of `pbt-rl`."""
    _open_closed_streams()
    adopt_orphans()
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
        _fail("the working directory has been deleted: cd to another directory", EXIT_USER_ERROR)
    working_directory_last()
    # Import after `working_directory_last`, because `python -m` puts the working directory at the start of `sys.path`.
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
    except SystemExit as error:  # raised by an environment or the parser
        _end(error.code)
    except BaseException:  # noqa: BLE001 - a bug of pbt_rl; threads of an environment must not keep the process alive
        traceback.print_exc()
        _end(EXIT_FAILED)
    _end(code)


def commands() -> dict[str, Command]:
    """Return the commands of pbt_rl and of other installed packages, by name."""
    return {command.name: command for command in (*COMMANDS, *OTHERS.values())}


def usage() -> str:
    """Format the list of commands."""
    lines = ["usage: pbt-rl COMMAND [OPTIONS]", "", "commands:"]
    for command in commands().values():
        typed = f"{command.name} {command.arguments}".rstrip()
        lines += textwrap.wrap(command.help, 120, initial_indent=f"  {typed:<29}", subsequent_indent=" " * 31)
    lines += ["", "pbt-rl COMMAND --help lists the options of a command; pbt-rl --version prints the version"]
    return "\n".join(lines) + "\n"


def _of_runs(words: list[str]) -> list[str]:
    """Replace each run name NAME before the first option by runs/NAME if no file or folder NAME exists."""
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
    """Split the command line into a command of one or two words, and its arguments.

    Raises ConfigError for an unknown command, and EntryPointError if the entry point of the command is faulty.
    """
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
        raise ConfigError(f"{name!r} is not a command: {hint} {', '.join(there)} (pbt-rl --help)")
    return there[name], arguments[1:]


def _fail(message: str, code: int) -> None:
    print(f"pbt-rl: {message}", file=sys.stderr)
    _end(code)


def _end(code: int | str | None) -> NoReturn:
    """Exit, even if threads or processes of an environment do not end.

    After `EXIT_SECONDS`, print the names of these threads and processes, kill all descendant processes, and exit. If no
    such thread or process exists, but functions registered with atexit still run, do this after `EXIT_SECONDS_AT_MOST`.

    code: exit code, as for `sys.exit`.
    """

    def insist() -> None:
        time.sleep(EXIT_SECONDS)
        if not _is_ending():  # `main` was called from a program that continues
            return
        names = {one.name for one in threading.enumerate() if not one.daemon} - {"MainThread"}
        names |= {child.name for child in multiprocessing.active_children()}
        if not names:  # atexit functions may run for a long time
            time.sleep(EXIT_SECONDS_AT_MOST - EXIT_SECONDS)
            names = {"functions registered with atexit"}
        print(
            f"pbt-rl: killing threads or processes of an environment that do not end: {', '.join(sorted(names)[:5])}",
            file=sys.stderr,
        )
        _kill_children()
        os._exit(code if isinstance(code, int) else code is not None)

    threading.Thread(target=insist, daemon=True).start()
    sys.exit(code)


def _end_children() -> None:
    """End the remaining descendants, even daemons, but not the children that `multiprocessing` ends.

    The environment's own atexit functions run earlier.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all children must end, although the user is impatient
    import psutil  # not needed by `pbt-rl --help`

    waited_for = {child.pid for child in multiprocessing.active_children()}
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in waited_for]
    for child in children:
        with suppress(psutil.Error):
            child.terminate()
    psutil.wait_procs(children, CHILD_SECONDS)
    _kill_children(waited_for)


def _kill_children(but: Collection[int | None] = ()) -> None:
    """Kill all descendant processes. but: ids of processes that are not killed."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.pid not in but:
                child.kill()


def _is_ending() -> bool:
    """True if the main thread has ended, or waits for the end of other threads."""
    main = threading.main_thread()
    frame = sys._current_frames().get(main.ident or 0)  # noqa: SLF001 - the only way to inspect it
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    waits = frame is not None and frame.f_code.co_filename == threading.__file__
    return waits or not main.is_alive()


def _open_closed_streams() -> None:
    """Open /dev/null for closed standard streams (`>&-`).

    Otherwise, the next opened file would get the descriptor of a standard stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open until the process ends

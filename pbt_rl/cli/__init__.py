"""The command line `pbt-rl`: one module per command, imported when the command is called.

A module has `run(arguments) -> exit code`. May be imported by nothing else of the project.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

from pbt_rl import __version__ as version
from pbt_rl.procs.paths import working_directory_last

USAGE = """usage: pbt-rl COMMAND [OPTIONS]

commands:
  train --env atari/pong ...   train a population (train --help lists the usual options; --show prints the plan only)
  resume RUN                   continue a run from its last checkpoint
  eval RUN                     play a trained member and print its score
  audit RUN                    decide a recorded run again and compare the decisions bit for bit
  report RUN...                draw ancestry, schedules, curves...: one HTML page, PNG, CSV, DOT, Newick; of several
                               runs, one page that compares them
  watch RUN                    show a run in the browser as it goes on (or when it is over)
  export RUN --format onnx     write a trained member (onnx, torchscript, safetensors) or the trials (optuna) for others
  runs [DIR]                   list the runs in a folder (default: runs): env, members, frames, best, state, age
  sweep --name NAME ...        train the same with several seeds and options, one after the other or side by side
  envs                         list the environments, what is missing and how to install it
  envs check ENV               step an environment and report its mistakes
  dmlab-cache                  build maps of DeepMind Lab beforehand

pbt-rl COMMAND --help lists the options of a command; pbt-rl --version prints the version
"""
COMMANDS = {
    "train": "pbt_rl.cli.train",
    "resume": "pbt_rl.cli.resume",
    "eval": "pbt_rl.cli.evaluate",
    "audit": "pbt_rl.cli.audit",
    "report": "pbt_rl.report.command",
    "watch": "pbt_rl.watch.command",
    "export": "pbt_rl.export.command",
    "runs": "pbt_rl.cli.runs",
    "sweep": "pbt_rl.sweep.command",
    "envs": "pbt_rl.cli.envs",
    "dmlab-cache": "pbt_rl.cli.dmlab_cache",
}
RENAMED_COMMANDS = {"replay": "audit"}
EXIT_USER_ERROR, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def main() -> None:
    """Run the command of `sys.argv` and exit with its code. Entry point of `pbt-rl`."""
    _open_closed_streams()
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        print(f"pbt-rl {version}")
        sys.exit(0)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if arguments else EXIT_USER_ERROR)
    working_directory_last()
    # Imported after that, with all that they import: `python -m` has put the working directory first.
    from pbt_rl.envs.base import EnvSetupError
    from pbt_rl.errors import ConfigError, RunFailed

    try:
        code: int = import_module(_module(arguments[0])).run(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # as in `pbt-rl train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (ConfigError, EnvSetupError) as error:
        _fail(str(error), EXIT_USER_ERROR)
    except RunFailed as error:
        _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", EXIT_INTERRUPTED)
    sys.exit(code)


def _module(command: str) -> str:
    from pbt_rl.errors import ConfigError

    if command in RENAMED_COMMANDS:
        raise ConfigError(
            f"{command} is now {RENAMED_COMMANDS[command]}: pbt-rl {RENAMED_COMMANDS[command]} RUN"
        )
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {close[0]}? The commands are" if close else "use"
        raise ConfigError(f"{command!r} is no command: {hint} {', '.join(COMMANDS)} (pbt-rl --help)")
    return COMMANDS[command]


def _fail(message: str, code: int) -> None:
    print(f"pbt-rl: {message}", file=sys.stderr)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Let streams that were closed (`>&-`) be /dev/null: else the first file that is opened would take their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for as long as the process lives

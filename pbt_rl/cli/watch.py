"""Command `pbt-rl watch`: serve a live page of a run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbt_rl.cli.report import check_packages
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import option
from pbt_rl.options.words import parse
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.run_lock import is_held

if TYPE_CHECKING:
    from pbt_rl.report.live import Live
    from pbt_rl.report.server import Server

PORT = 8750
WAIT_SECONDS = 60.0
"""Maximum wait for a run's folder. If a process has locked the folder, the wait has no limit."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class WatchCommand:
    """Show a run in the browser: members, curves, ancestry, schedules, decisions.

    The run may be starting, running, resumed or finished. The command only reads files of the run. By default, only
    this machine can open the page. With --host ADDRESS, all machines that reach ADDRESS can open the page.
    """

    run: Path = option(positional=True)
    """Folder of a run, such as runs/demo."""
    port: int = option(0, at_least=0, at_most=65535)
    """Port of the server. 0: 8750, or a free port if 8750 is in use."""
    host: str = "127.0.0.1"
    """Address of the network interface for the page, such as 0.0.0.0 for all interfaces. A safer way to open the
    page from another machine: `ssh -L 8750:localhost:8750 HOST`."""


def run(arguments: list[str]) -> int:
    """Run `pbt-rl watch`: serve the page until Ctrl-C."""
    command = parse(WatchCommand, "pbt-rl watch", arguments)
    check_packages("watch", {"matplotlib": "matplotlib"})
    try:
        live = _live(command.run)
    except KeyboardInterrupt:
        print()
        return 0
    try:
        server = _server(command, live)
    except (OSError, TypeError, UnicodeError) as error:  # an invalid host name raises the last two
        raise ConfigError(
            f"--host {command.host}{f' --port {command.port}' if command.port else ''} cannot be used: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    with server:
        print(f"{command.run}: open {server.url} in a browser; Ctrl-C ends the server", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
        finally:
            live.close()
    return 0


def _live(run: Path) -> Live:
    """Open a run. If the run is starting, wait for its journal.

    Raises ConfigError if the journal is damaged, or if the run has no journal and is not starting (see WAIT_SECONDS).
    """
    from pbt_rl.report.live import Live

    deadline, told = time.monotonic() + WAIT_SECONDS, False
    while True:
        try:
            return Live(run)
        except ConfigError as error:
            journal = RunFolder(run).journal
            begun = os.path.lexists(journal) and not (journal.is_file() and journal.stat().st_size == 0)
            new = not os.path.lexists(run) and time.monotonic() < deadline
            if begun or not (new or is_held(run)):
                raise
            if not told:
                print(
                    f"{error if new else f'{run} has no journal yet'}; waiting for the run (Ctrl-C ends the wait)",
                    flush=True,
                )
            told = True
        time.sleep(POLL_SECONDS)


def _server(command: WatchCommand, live: Live) -> Server:
    from pbt_rl.report.server import Server

    try:
        return Server(command.host, command.port or PORT, live)
    except OSError:
        if command.port:
            raise
        return Server(command.host, 0, live)

"""Try environments of other packages: install each in a venv of its own, check, train, evaluate and film it.

    python scripts/outside.py [--seconds 60] [--folder build/outside] [--install] [NAME ...]

Everything lies in FOLDER/NAME: venv, run, film, log, result.json. What has a result is not done again: delete that
file for it. `--install` makes the venvs only; they see the packages of the interpreter that runs this, and hold what
the package needs beyond them. Without names, the table in docs/reference/environments.md is rewritten from all results.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "environments.md"
BEGIN, END = "<!-- outside: begin -->", "<!-- outside: end -->"
INSTALL_SECONDS, COMMAND_SECONDS = 600, 300
LAST_LINES = 3
FAILED, INSTALLED = "failed", "installed"


@dataclass(frozen=True)
class Package:
    """What to install, and what of it to train. options: of environment and network, beside the recipe."""

    name: str
    env: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()


PACKAGES = (
    Package("minigrid", "minigrid/MiniGrid-DoorKey-5x5-v0", ("minigrid",)),
    Package("minatar", "minatar/Breakout-v1", ("minatar",)),
    Package("crafter", "crafter", ("crafter",)),
    Package("highway-env", "highway-env/highway-fast-v0", ("highway-env",)),
    Package("dm_control", "dm_control/cartpole-swingup-v0", ("shimmy[dm-control]", "mujoco<4")),
    Package("popgym", "popgym/RepeatPreviousEasy-v0", ("popgym",), ("--model.core", "gru")),
    Package(
        "gymnasium-robotics",
        "gym/gymnasium_robotics:FetchReachDense-v4",
        ("gymnasium-robotics", "mujoco<3.12"),
    ),
    Package("panda-gym", "gym/panda_gym:PandaReachDense-v3", ("panda-gym",)),
    Package("flappy-bird-gymnasium", "gym/flappy_bird_gymnasium:FlappyBird-v0", ("flappy-bird-gymnasium",)),
    Package("gym-pusht", "gym/gym_pusht:gym_pusht/PushT-v0", ("gym-pusht",)),
    Package("tetris-gymnasium", "gym/tetris_gymnasium.envs:tetris_gymnasium/Tetris", ("tetris-gymnasium",)),
    Package("gym-anytrading", "gym/gym_anytrading:stocks-v0", ("gym-anytrading",)),
    Package("box2d", "gym/LunarLander-v3", ("gymnasium[box2d]",)),
    Package("gym-xarm", "gym/gym_xarm:gym_xarm/XarmLift-v0", ("gym-xarm",)),
    Package("pyflyt", "gym/PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", ("PyFlyt",)),
)


def main() -> int:
    """Try the packages that have no result yet, and rewrite the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="of packages; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="of training")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "outside")
    parser.add_argument("--install", action="store_true", help="make the venvs, and nothing else")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {package.name for package in PACKAGES}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: use {', '.join(p.name for p in PACKAGES)}")
    for package in PACKAGES:
        if arguments.names and package.name not in arguments.names:
            continue
        folder = arguments.folder.resolve() / package.name
        result = folder / "result.json"
        if result.is_file():
            print(package.name, result.read_text().replace("\n", " "), flush=True)
            continue
        found = {"env": package.env, "seconds": f"{arguments.seconds:g}"}
        refused = installed(package, folder)
        if refused or arguments.install:
            print(package.name, refused or "is installed", flush=True)
            found["install"] = refused
        else:
            found |= tried(package, folder, arguments.seconds)
        if not arguments.install:
            result.write_text(json.dumps(found, indent=2))
    if not arguments.names and not arguments.install:
        write_table(arguments.folder.resolve())
    return 0


def installed(package: Package, folder: Path) -> str:
    """Make its venv, if it is not there; return what pip refused, or nothing."""
    if (folder / INSTALLED).is_file():
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = interpreter(folder)
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [str(python), "-m", "pip", "install", "-q", *package.requirements],
    ):
        code, said = run(command, folder, INSTALL_SECONDS)
        if code:
            return last_words(said)
        if "venv" in command:
            share_packages(python)
    (folder / INSTALLED).touch()
    return ""


def tried(package: Package, folder: Path, seconds: float) -> dict[str, str]:
    """Check, train, evaluate and film; return what each step said."""
    found: dict[str, str] = {}
    pbt_rl = [str(interpreter(folder)), "-m", "pbt_rl"]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    began = time.monotonic()
    for step, arguments, limit in (
        ("check", ["envs", "check", package.env, "--steps", "300"], COMMAND_SECONDS),
        ("train", ["train", *training(package, seconds)], COMMAND_SECONDS + seconds),
        ("eval", ["eval", "runs/run", "--trust", "--episodes", "5"], COMMAND_SECONDS),
        ("film", ["eval", "runs/run", "--trust", "--episodes", "1", "--video", "film.mp4"], COMMAND_SECONDS),
    ):
        code, said = run([*pbt_rl, *arguments], folder, limit)
        (folder / "log.txt").open("a").write(f"$ pbt-rl {' '.join(arguments)}\n{said}\nexit code {code}\n\n")
        found |= {step: f"{FAILED}: {last_words(said)}"} if code else SAYS[step](said)
        print(f"  {package.name} {step}: {found[step][:150]} ({time.monotonic() - began:.0f} s)", flush=True)
        if code and step == "train":
            break
    return found


def interpreter(folder: Path) -> Path:
    """Return the Python of a package's venv."""
    return folder / "venv" / "bin" / "python"


def last_words(said: str) -> str:
    """Return the error line of what a command printed, or its end, as one line."""
    lines = [line for line in said.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("pbt-rl:")]
    return ours[-1][:160] if ours else " ".join(lines[-LAST_LINES:])[-300:]


def training(package: Package, seconds: float) -> list[str]:
    """Return the options of the run: four members, compared within it."""
    return [
        f"--env={package.env}",
        "--num-policies=4",
        "--name=run",
        f"--train-for-seconds={seconds:g}",
        "--pbt.start-frames=2000",
        "--pbt.period-frames=2000",
        *package.options,
    ]


def share_packages(python: Path) -> None:
    """Let a venv see the packages of this interpreter, behind its own, and this copy of pbt_rl."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    lines = [str(ROOT), *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))]
    Path(own, "shared.pth").write_text("\n".join(lines) + "\n")


def run(command: list[str], folder: Path, limit: float) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {limit:.0f} s"
    return done.returncode, done.stdout


def _checked(said: str) -> dict[str, str]:
    return {"check": said.strip().splitlines()[-1][:80]}


def _trained(said: str) -> dict[str, str]:
    best = re.findall(r"^1 .*", said, re.MULTILINE)
    frames = re.findall(r"^\S+ \| (\S+) frames \| ([\d,]+) frames/s$", said, re.MULTILINE)
    seen = re.findall(r"^the network sees (.*)$", said, re.MULTILINE)
    count, rate = frames[-1] if frames else ("?", "?")
    return {
        "train": "yes",
        "frames": count,
        "rate": rate,
        "sees": seen[0] if seen else "?",
        "best": " ".join(best[:1]),
    }


def _played(said: str) -> dict[str, str]:
    found = re.search(r"mean (\S+), std \S+, min (\S+), max (\S+)", said)
    return {"eval": f"{found[1]} ({found[2]} to {found[3]})" if found else said.strip()[-80:]}


def _filmed(_said: str) -> dict[str, str]:
    return {"film": "yes"}


NO_FILM = {
    "only human": "no: it draws on a screen alone",
    "cannot render": "no: it renders nothing",
    "np.integer": "no: its drawing fails under numpy 2.4",
    "camera_name": "no: its drawing fails under Gymnasium 1.4",
    "cannot be drawn": "no: there was no OpenGL",
}
SAYS = {"check": _checked, "train": _trained, "eval": _played, "film": _filmed}


def shortened(sees: str) -> str:
    """Return what the network sees without the words in brackets, and what is normalised."""
    return re.sub(r" \([^)]*\)|, normalised", "", sees)


def write_table(folder: Path) -> None:
    """Rewrite the table of the page from all results."""
    lines = [
        "| environment | install | check | the network sees | frames | frames/s | five games | film |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    seconds = set()
    for package in PACKAGES:
        result = folder / package.name / "result.json"
        if not result.is_file():
            continue
        found: dict[str, str] = json.loads(result.read_text())
        seconds.add(found["seconds"])
        refused = found.get("install") or (found["train"] if found["train"].startswith(FAILED) else "")
        cells = [
            f"`{found['env']}`",
            f"`{' '.join(package.requirements)}`",
            mistake[1] if (mistake := re.search(r"MISTAKE: ([^;]*)", found["check"])) else found["check"],
            *([refused, "", ""] if refused else [shortened(found["sees"]), found["frames"], found["rate"]]),
            found.get("eval", ""),
            next(
                (text for said, text in NO_FILM.items() if said in found.get("film", "")),
                found.get("film", ""),
            ),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    said = f"{', '.join(sorted(seconds))} s of training of four members each, by `scripts/outside.py`:"
    text = "\n".join([BEGIN, "", said, "", *lines, "", END])
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + text + rest.partition(END)[2])


if __name__ == "__main__":
    sys.exit(main())

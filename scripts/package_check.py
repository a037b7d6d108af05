"""Build wheel and sdist, install the wheel, and train outside the checkout: `make package`.

    python scripts/package_check.py [--own] [--out dist]

The wheel is built from the sdist. The check therefore covers both. The wheel is installed into a new venv with the
dependencies of constraints.txt. With --own, the venv shares the packages of this interpreter instead: this takes
seconds, and still detects files that are missing in the wheel. The variable TORCH_INDEX is the URL of another index for
PyTorch, as for `make`. Only committed files are packaged.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/pbt-rl/pbt-rl"
SHIPPED = (".py", "py.typed", ".html", ".css", ".js")
TRAIN = (
    "pbt-rl train --env envs.mine:make --num-policies 2 --actors 1 --train-for-seconds 5 --no-figures "
    "--pbt.start-frames 500 --pbt.period-frames 500 --pbt.min-episodes 1 --name x"
)
OWN_ENVIRONMENT = """
import gymnasium


def make():
    return gymnasium.make("CartPole-v1")
"""
LOOK = """
import pathlib
import envs, envs.mine
import pbt_rl, pbt_rl.algos.appo, pbt_rl.envs.toy
assert "site-packages" in pbt_rl.__file__, pbt_rl.__file__
assert pathlib.Path(envs.__path__[0]).parent == pathlib.Path.cwd()
assert (pathlib.Path(pbt_rl.__file__).parent / "py.typed").exists()
policy = pbt_rl.load_policy("runs/x", trust=True)
print("plays", policy([0.0, 0.0, 0.0, 0.0])[0])
"""


def main() -> None:
    """Build, install and train. The first failure ends the program and prints its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--own", action="store_true", help="share the packages of this interpreter")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for wheel and sdist")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wheel = build(options.out.resolve())
    with tempfile.TemporaryDirectory() as folder:
        try_out(wheel, Path(folder), own=options.own)
    print(f"{wheel} and its sdist work")


def build(out: Path) -> Path:
    """Build the sdist, and the wheel from the sdist, with the setuptools of this interpreter. Return the wheel."""
    for old in [*out.glob("pbt_rl-*.whl"), *out.glob("pbt_rl-*.tar.gz")]:
        old.unlink()
    backend = "from setuptools import build_meta as b; import sys; getattr(b, sys.argv[1])(sys.argv[2])"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "checkout"  # setuptools writes into the folder that it builds
        archive = Path(folder) / "checkout.tar"
        run(["git", "-C", str(ROOT), "archive", "-o", str(archive), "HEAD"], Path(folder))
        unpack(archive, source)
        readme = source / "README.md"
        readme.write_text(absolute(readme.read_text(encoding="utf-8")), encoding="utf-8")
        run([sys.executable, "-c", backend, "build_sdist", str(out)], source)
        (sdist,) = out.glob("pbt_rl-*.tar.gz")
        unpack(sdist, Path(folder) / "sdist")
        (inner,) = (Path(folder) / "sdist").iterdir()
        run([sys.executable, "-c", backend, "build_wheel", str(out)], inner)
    (wheel,) = out.glob("pbt_rl-*.whl")
    check_contents(wheel)
    return wheel


def absolute(readme: str) -> str:
    """Return the README with absolute links, which the package index requires."""
    pictures = re.sub(r"(!\[[^]]*\]\()(?!http)", rf"\1{REPOSITORY}/raw/main/", readme)
    return re.sub(r"(\]\()(?!http|#)", rf"\1{REPOSITORY}/blob/main/", pictures)


def check_contents(wheel: Path) -> None:
    """Check that the wheel has exactly the Python, HTML, CSS and JavaScript files of the checkout."""
    has = {name for name in ZipFile(wheel).namelist() if name.endswith(SHIPPED)}
    tracked = run(["git", "-C", str(ROOT), "ls-files", "pbt_rl", "envs", "algos"], ROOT).split()
    wanted = {
        name if name.startswith("pbt_rl/") else f"pbt_rl/{name}" for name in tracked if name.endswith(SHIPPED)
    }
    if has != wanted:
        sys.exit(f"{wheel} lacks {sorted(wanted - has)} and has extra files {sorted(has - wanted)}")


def try_out(wheel: Path, folder: Path, *, own: bool) -> None:
    """Install the wheel into a new venv. Train with an environment of a user package `envs`.

    own: True if the venv shares the packages of this interpreter.
    """
    home, here = folder / "venv", folder / "here"
    venv.create(home, with_pip=True)
    binaries = home / "bin"
    pip = [str(binaries / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if own:
        (target,) = (home / "lib").glob("python*/site-packages")
        (target / "own.pth").write_text(sysconfig.get_path("purelib") + "\n")
        run([*pip, "--no-deps", "--no-index", str(wheel)], folder)
    else:
        constraints = ["-c", str(ROOT / "constraints.txt")]
        index = os.environ.get("TORCH_INDEX")
        run([*pip, *constraints, *(["--index-url", index] if index else []), "torch"], folder)
        run([*pip, *constraints, str(wheel)], folder)
    (here / "envs").mkdir(parents=True)
    (here / "envs" / "mine.py").write_text(OWN_ENVIRONMENT)
    print(run([str(binaries / "pbt-rl"), "--version"], here).strip())
    command, *arguments = TRAIN.split()
    run([str(binaries / command), *arguments], here)
    print(run([str(binaries / "python"), "-c", LOOK], here).strip())
    run([str(binaries / "pbt-rl"), "audit", "runs/x"], here)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a new folder."""
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")


def run(command: list[str], folder: Path) -> str:
    """Run a command without PYTHONPATH, and return the output. If the command fails, this program ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}\nended with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()

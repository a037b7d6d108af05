"""Run the tests that depend on torch with several releases of torch: make test-torch [ARGS="--short"]

Each release has a separate virtual environment, .venv-torch/RELEASE, which shares the other packages of .venv. With
TORCH_INDEX=https://download.pytorch.org/whl/cpu, pip installs a small wheel. Otherwise the wheel has GPU kernels and at
least half a gigabyte. The 3 GB of CUDA libraries for this wheel are not installed: gcc makes stubs of these libraries,
which report that there is no GPU.

--short downloads no wheel, skips the release of .venv (see `make test`), and runs fewer tests. Unavailable releases
are skipped and reported. The exit code is 1 if a test fails, or (without --short) if no test ran.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-torch"
RELEASES = ("2.9.*", "2.11.*", "2.13.*", "newest")
"""Releases of torch to test: the oldest supported release, two later releases, and the newest release."""
TESTS = ("tests/algos", "tests/learner")
SHORT = (
    "tests/algos/test_torch_names.py",
    "tests/learner/cuda/test_recording.py",
    "tests/algos/test_fused.py",
    "tests/learner/test_pretend_gpu.py",
    "tests/learner/test_gpu.py",
    "tests/learner/cuda/test_streams.py",
    "tests/learner/cuda/test_recorded_steps.py",
)
MARKS = "not slow and not long and not nodes and not simulators"
STUBBED = r"lib(cu|nv|nccl)"
"""Pattern of the names of CUDA libraries."""


class LeftOutError(Exception):
    """Release that is not tested. The message is the reason."""


@dataclass(frozen=True)
class Wheel:
    """Wheel of torch. triton: requirement for the package triton in the metadata of the wheel, or ""."""

    version: str
    address: str
    triton: str


def found(release: str, index: str) -> Wheel:
    """Return the wheel that pip would install for a release. Only the metadata of the wheel is downloaded."""
    asked = f"torch=={release}" if release else "torch"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--only-binary", ":all:", "--report", "-"]
    command += [*(["--index-url", index] if index else []), asked]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if ran.returncode:
        raise LeftOutError(f"pip finds no wheel: {(ran.stderr.strip().splitlines() or ['?'])[-1]}")
    (wheel,) = json.loads(ran.stdout)["install"]
    about = wheel["metadata"]
    needs = [need.partition(";")[0].strip() for need in about.get("requires_dist", ())]
    triton = next((need for need in needs if need.startswith("triton")), "")
    return Wheel(about["version"], wheel["download_info"]["url"], triton)


def python_with(wheel: Wheel) -> Path:
    """Return the interpreter of the virtual environment with this wheel. Create the environment if it is missing."""
    folder = FOLDER / wheel.version
    python, ready = folder / "bin/python", folder / "ready"
    if ready.exists():
        return python
    print(f"making {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "main.pth").write_text("".join(f"{p}\n" for p in sys.path if p.endswith("site-packages")))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
    if subprocess.run([*pip, wheel.address, *filter(None, [wheel.triton])], check=False).returncode:
        raise LeftOutError("pip could not install it")
    stub_libraries(site / "torch/lib")
    shown = [str(python), "-c", "import torch; print(torch.__version__)"]
    loaded = subprocess.run(shown, capture_output=True, text=True, check=False)
    if not loaded.stdout.startswith(wheel.version):
        raise LeftOutError(f"it cannot be loaded: {(loaded.stderr.strip().splitlines() or ['?'])[-1]}")
    ready.touch()
    return python


def stub_libraries(folder: Path) -> None:
    """Make stubs of the CUDA libraries that the libraries in a folder need. Each function returns cudaErrorNoDevice."""

    def said(*command: str | Path) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    if not shutil.which("readelf"):
        return  # missing libraries are reported on loading
    needed, undefined, defined, library_of = set[str](), set[str](), set[str](), dict[str, str]()
    libraries = sorted(folder.glob("lib*.so"))
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", said("readelf", "--dynamic", library)))
    gone = sorted(n for n in needed - {path.name for path in folder.iterdir()} if re.match(STUBBED, n))
    if not gone:
        return
    if not shutil.which("gcc"):
        raise LeftOutError("its wheel needs CUDA's libraries, and there is no gcc to make stubs of them")
    for library in libraries:
        of = ""
        for line in said("readelf", "--version-info", "--wide", library).splitlines():
            if file := re.search(r"File: (\S+)", line):
                of = file[1]
            elif of and (needs := re.search(r"Name: (\S+)", line)):
                library_of[needs[1]] = of
        for line in said("nm", "--dynamic", library).splitlines():
            kind, name = line.split()[-2:]
            (undefined if kind == "U" else defined).add(name)
    functions: dict[str, dict[str, list[str]]] = {name: {} for name in gone}
    for symbol in undefined - defined:
        name, _, version = symbol.partition("@")
        of = library_of.get(version, gone[0] if re.match("nccl|cu|nv", name) else "")
        if of in functions:
            functions[of].setdefault(version, []).append(name)
    source, script = folder / "stub.c", folder / "stub.map"
    for library_name, versions in functions.items():
        names = [name for own in versions.values() for name in own]
        code = [f"long {name}(void) {{ return 100; }}\n" for name in names]
        source.write_text("".join(code) or "int nothing;\n")
        groups = [f"{v} {{ global: {'; '.join(own)}; }};\n" for v, own in versions.items() if v]
        script.write_text("".join(groups))
        options = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{library_name}"]
        options += [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        subprocess.run(["gcc", *options, "-o", folder / library_name, source], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test each release and print the results. Return the exit code."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="no downloads and fewer tests, for CI")
    parser.add_argument("--releases", default=" ".join(RELEASES), help="releases, separated by spaces")
    given = parser.parse_args(arguments)
    lines, codes = [], dict[str, int]()
    for release in given.releases.split():
        try:
            version, python = environment(release, short=given.short)
        except LeftOutError as why:
            lines.append(f"torch {release}: left out: {why}")
            continue
        if version not in codes:
            codes[version] = tested(python, SHORT if given.short else TESTS)
            lines.append(f"torch {version}: {'FAILED' if codes[version] else 'passed'}")
    print("\n".join(["", *lines]))
    return int(any(codes.values()) or not (codes or given.short))


def environment(release: str, *, short: bool) -> tuple[str, Path]:
    """Return version and interpreter of a release. short: True to raise LeftOutError instead of downloading."""
    wheel = found("" if release == "newest" else release, os.environ.get("TORCH_INDEX", ""))
    if short and wheel.version == metadata.version("torch"):
        raise LeftOutError("it is the release of .venv: use `make test`")
    if short and not wheel.address.startswith("file:") and not (FOLDER / wheel.version / "ready").exists():
        raise LeftOutError("it must be downloaded: leave out --short")
    return wheel.version, python_with(wheel)


def tested(python: Path, tests: Sequence[str]) -> int:
    """Run tests with an interpreter. Return the exit code of pytest."""
    command = [str(python), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", MARKS, *tests]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

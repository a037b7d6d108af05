"""Write a report: the page, one PNG file per figure, and the tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.report.exports import files
from pbt_rl.report.page import page
from pbt_rl.report.pictures import PICTURES, draw
from pbt_rl.report.read import read_run


def write_report(run: Path, out: Path) -> list[Path]:
    """Write everything into `out`, creating it; return the files, the page first. Raises ConfigError.

    Symbolic links among the files of an earlier report are replaced, not followed; `out` itself may be one only if it
    lies outside of the run.
    """
    linked = os.path.islink(out)  # noqa: PTH114 - Path.is_symlink raises for a path that no file can have
    if linked and out.parent.resolve() == run.resolve():
        raise ConfigError(f"{out} is a symbolic link to {out.readlink()}: remove it, or give --out FOLDER")
    history = read_run(run)
    pictures = [(picture, draw(picture, history)) for picture in PICTURES]
    contents: dict[str, bytes] = {"report.html": page(history, pictures).encode()}
    contents |= {f"{p.name}.png": image for p, image in pictures if isinstance(image, bytes)}
    contents |= {name: text.encode() for name, text in files(history).items()}
    # An earlier report may have drawn what this one does not.
    return write_files(out, contents, [f"{p.name}.png" for p, image in pictures if isinstance(image, str)])


def write_files(out: Path, contents: Mapping[str, bytes], absent: Sequence[str] = ()) -> list[Path]:
    """Write files into a folder, which is made if it is missing, and remove those of the names `absent`.

    Return their paths. Raises ConfigError.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in absent:
            (out / name).unlink(missing_ok=True)
        for name, content in contents.items():
            _replace(out / name, content)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return [out / name for name in contents]


def _replace(path: Path, content: bytes) -> None:
    """Write a file anew, in place of a link of its name. Raises OSError; then the old one is still there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

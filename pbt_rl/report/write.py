"""Write a report: the page, one PNG file per figure, and the tables."""

from __future__ import annotations

from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.report.exports import files
from pbt_rl.report.page import page
from pbt_rl.report.pictures import PICTURES, draw
from pbt_rl.report.read import read_run


def write_report(run: Path, out: Path) -> list[Path]:
    """Write everything into `out`, creating it; return the files, the page first. Raises ConfigError."""
    history = read_run(run)
    pictures = [(picture, draw(picture, history)) for picture in PICTURES]
    contents: dict[str, bytes] = {"report.html": page(history, pictures).encode()}
    contents |= {f"{p.name}.png": image for p, image in pictures if isinstance(image, bytes)}
    contents |= {name: text.encode() for name, text in files(history).items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for picture, image in pictures:  # an earlier report may have drawn it
            if isinstance(image, str):
                (out / f"{picture.name}.png").unlink(missing_ok=True)
        for name, content in contents.items():
            (out / name).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return [out / name for name in contents]

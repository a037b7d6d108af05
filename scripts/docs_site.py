"""Collect the pages of the documentation site in build/docs for mkdocs: `make docs`.

The site has the pages of docs/, README, CONTRIBUTING and CHANGELOG. Links to other files of the repository point to the
web page of the repository. Two pages are generated from the code: options with their help texts, and docstrings of the
public names.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "docs"
REPOSITORY = "https://github.com/pbt-rl/pbt-rl/blob/main"
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Page outside docs/ -> file name on the site."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Write all pages into build/docs."""
    sys.path.insert(0, str(ROOT))
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    pages = {ROOT / name: OUT / new for name, new in BESIDE.items()}
    docs = ROOT / "docs"
    copied = [path for path in docs.rglob("*") if path.suffix in (".md", ".png")]
    pages |= {path: OUT / path.relative_to(docs) for path in copied}
    pages |= {path: OUT / f"{path.stem}.md" for path in docs.glob("*.ipynb")}
    for path, target in pages.items():
        target.parent.mkdir(exist_ok=True)
        if path.suffix == ".png":
            shutil.copyfile(path, target)
        else:
            text = path.read_text(encoding="utf-8")
            text = text if path.suffix == ".md" else printed(json.loads(text), target)
            target.write_text(linked(text, path, pages), encoding="utf-8")
    (OUT / "reference" / "options.md").write_text(options_page(), encoding="utf-8")
    (OUT / "reference" / "python-names.md").write_text(python_page(), encoding="utf-8")
    print(f"{len([path for path in OUT.rglob('*') if path.is_file()])} files in {OUT}")


def printed(notebook: Mapping[str, Any], target: Path) -> str:
    """Convert a notebook with its outputs to Markdown. Pictures are written into the folder of `target`."""
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                name = f"{target.stem}-{number}.png"
                (target.parent / name).write_bytes(base64.b64decode(picture))
                parts.append(f"![output of the cell above]({name})")
            elif text := output.get("text"):
                parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def linked(text: str, page: Path, pages: Mapping[Path, Path]) -> str:
    """Adapt the links of a page to the site, except in code blocks. pages: source file -> file of the site."""

    def right(link: re.Match[str]) -> str:
        name, hash_sign, heading = link[1].partition("#")
        if "://" in name or not name:
            return link[0]
        if (pages[page].parent / name).is_file() and name.endswith(".png"):
            return link[0]  # a picture of a notebook
        path = Path(os.path.normpath(page.parent / name))
        there = os.path.relpath(pages[path], pages[page].parent) if path in pages else ""
        return f"]({there or f'{REPOSITORY}/{path.relative_to(ROOT)}'}{hash_sign}{heading})"

    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(right, part) for part in parts)


# -- generated from the code ----------------------------------------------------------------------------------


def options_page() -> str:
    """Generate the page with all commands and the options of `pbt-rl train`."""
    from pbt_rl.cli import usage  # noqa: PLC0415 - the path is set first
    from pbt_rl.config.command import TrainCommand  # noqa: PLC0415
    from pbt_rl.options.declare import table  # noqa: PLC0415
    from pbt_rl.options.values import allowed  # noqa: PLC0415

    lines = [
        "# Commands and options\n\nGenerated from the code. `pbt-rl COMMAND --help` prints this text, too.\n",
        f"```\n{usage().strip()}\n```\n\n## Options of `pbt-rl train`\n",
        "These are the defaults without an environment. Recipes of environment and algorithm override them (`--show`).",
    ]
    values, group = TrainCommand(env=""), None
    for option in sorted(table(values).values(), key=lambda option: len(option.path) > 1):
        value, room = option.of(values), option.name.rpartition(".")[0]
        if room != group:
            group = room
            lines += [f"\n### {f'`--{group}.*`' if group else 'The run'}\n"]
            lines += ["| option | default | |", "| --- | --- | --- |"]
        limits = allowed(option.metadata, value)
        about = _escaped(option.help) + (f" *({_escaped(limits)})*" if limits else "")
        lines.append(f"| `--{option.name}` | {_cell(value)} | {about} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value in ("", (), None):
        return ""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _escaped(text: str) -> str:
    """Escape vertical bars, asterisks and HTML in a text for a table cell."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def python_page() -> str:
    """Generate the page with signatures and docstrings of the public names."""
    import pbt_rl  # noqa: PLC0415
    from pbt_rl import tune  # noqa: PLC0415

    lines = ["# Python\n\nGenerated from the docstrings; [From Python](python.md) has examples.\n"]
    lines.append(f"```\n{inspect.cleandoc(pbt_rl.__doc__ or '')}\n```\n")
    for name in pbt_rl.__all__:
        if name != "tune":
            lines += described(f"pbt_rl.{name}", getattr(pbt_rl, name))
    for name in tune.__all__:
        lines += described(f"pbt_rl.tune.{name}", getattr(tune, name))
    return "\n".join(lines) + "\n"


def described(name: str, named: Any) -> list[str]:
    """Return the section of a public name. The section of a class includes the public methods and properties."""
    lines = [f"## {name}\n", *_signature(name, named)]
    if not inspect.isclass(named) or issubclass(named, BaseException):
        return lines
    for member, value in vars(named).items():
        shown = inspect.isfunction(value) or isinstance(value, property | classmethod)
        if shown and not member.startswith("_"):
            called = value.__func__ if isinstance(value, classmethod) else value
            lines += [f"### {name.rpartition('.')[2]}.{member}\n", *_signature(member, called)]
    return lines


def _signature(name: str, named: Any) -> list[str]:
    """Return the docstring of a name, and the signature if there is one."""
    text = f"```text\n{inspect.cleandoc(named.__doc__ or '')}\n```\n"
    if not callable(named) or (inspect.isclass(named) and issubclass(named, BaseException)):
        return [text]
    try:
        signature = str(inspect.signature(named))
    except ValueError:
        return [text]
    if len(signature) > 80:
        signature = re.sub(r"<[^>]*>", "...", signature)
        signature = signature.replace(", ", ",\n    ").replace("(", "(\n    ", 1)
    return [f"```python\n{name.rpartition('.')[2]}{signature}\n```\n", text]


if __name__ == "__main__":
    main()

"""Report page: one self-contained HTML file that needs no network and no JavaScript."""

from __future__ import annotations

import base64
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from pbt_rl.controllers.changes import DecisionName
from pbt_rl.controllers.records import finite
from pbt_rl.display.ranking import shown_values, value
from pbt_rl.display.terminal import counted, in_words
from pbt_rl.errors import ConfigError
from pbt_rl.record.history import History, read_run
from pbt_rl.report.exports import files, members, value_column
from pbt_rl.report.pictures import NOT_MEANT, PICTURES, Picture, draw
from pbt_rl.report.style import short
from pbt_rl.report.verdict import control_box, notes

LAST_DECISIONS = 200
KINDS: Mapping[DecisionName, tuple[str, str]] = {
    "replace": ("replacement", "replacements"),
    "mutate": ("mutation", "mutations"),
    "restart": ("restart", "restarts"),
    "stop": ("stopped", "stopped"),
}
MEMBERS_CAPTION = (
    "Last known state of each member, best first, with the values that differ between members or changed. Objective: "
    "mean over the last episodes since the member's last change. ~: not every environment has ended an episode since. "
    "Environments: those that have. Return: mean over the last episodes, without shaped rewards. Final: mean of the "
    "final evaluation."
)
CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
.sub, .caption, .none { color: #5b6675; } .caption { font-size: .87rem; margin: .1rem 0 .6rem; max-width: 50rem; }
.lead { font-size: 1.2rem; margin: .8rem 0 1.2rem; max-width: 56rem; }
.none { background: #f6f7f9; border-radius: .4rem; padding: .6rem .9rem; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 .6rem; } .head details[open] { flex-basis: 100%; }
.head summary { list-style: none; border: 1px solid #94a3b8; border-radius: 50%; width: 1.2em; height: 1.2em;
  font-size: .8rem; line-height: 1.2em; text-align: center; }
img { max-width: 100%; height: auto; display: block; }
@media (max-width: 40rem) { img { max-width: none; width: 44rem; } body { margin: 1rem auto; }
  }
ul.none { padding-left: 2rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
dl div { background: #f6f7f9; border-radius: .4rem; padding: .5rem .8rem; } dt { font-size: .78rem; color: #5b6675; }
dd { margin: 0; font-size: 1.12rem; font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .83rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: #5b6675; font-weight: 600; vertical-align: bottom; }
th, td { padding: .22rem .45rem .22rem 0; border-bottom: 1px solid #e5e9f0; white-space: nowrap; }
td.number, table.numbers th { text-align: right; } td.text { white-space: normal; min-width: 13rem; }
table.numbers th.left { text-align: left; }
table.numbers td:first-child, table.numbers th:first-child { position: sticky; left: 0; background: #fff; }
.box { border: 2px solid #1d4ed8; border-radius: .4rem; padding: .2rem 1rem; margin: 1rem 0; }
.box h2 { margin: .4rem 0; }
table.numbers tr.control td { background: #f3e8ff; } .box td { white-space: normal; }
tr.best td { color: #c2410c; font-weight: 600; }
summary { cursor: pointer; color: #1d4ed8; margin: .4rem 0; } .more > summary { font-size: 1.15rem; margin-top: 2rem; }
pre { font-size: .78rem; background: #f6f7f9; padding: 1rem; border-radius: .4rem; overflow-x: auto; }
"""


def document(title: str, body: str) -> str:
    """Return a self-contained HTML page. title: plain text."""
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{CSS}</style></head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
"""


def section(title: str, caption: str, body: str) -> str:
    """Return a section of a page. caption: text behind the question mark, may be empty. body: HTML."""
    note = (
        f'<details><summary>?</summary><p class="caption">{escape(caption)}</p></details>' if caption else ""
    )
    return f'<div class="head"><h2>{escape(title)}</h2>{note}</div>\n{body}\n'


def image(data: bytes, alt: str) -> str:
    """Return a PNG file as an HTML image."""
    text = base64.b64encode(data).decode()
    return f'<div class="wide"><img alt="{escape(alt)}" src="data:image/png;base64,{text}"></div>'


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same columns as an HTML table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(x))}</td>' for x in row.values())}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def none(text: str) -> str:
    """Return a sentence to show in place of missing content."""
    return f'<p class="none">{escape(text)}</p>'


def page(history: History, pictures: Sequence[tuple[Picture, bytes | str]]) -> str:
    """Return the HTML of a report. pictures: each with its PNG file, or the reason why it is missing."""
    title = f"{history.name}: {history.options.env}" if history.options.api is None else history.name
    unit = history.options.unit
    shown: dict[bool, list[str]] = {False: [], True: []}
    missing: dict[bool, list[str]] = {False: [], True: []}
    for picture, drawn in pictures:
        if isinstance(drawn, bytes):
            body = image(drawn, picture.title)
            shown[picture.more].append(section(picture.title, picture.caption.replace("frames", unit), body))
        elif drawn not in NOT_MEANT:
            missing[picture.more].append(f"{picture.title}: {drawn}")
    first, others = "".join(shown[False][:1]), "".join(shown[False][1:])
    not_drawn, nor_these = (none(" ".join(lines)) if lines else "" for lines in missing.values())
    caption = MEMBERS_CAPTION if unit != "steps" else MEMBERS_CAPTION.replace("episodes", "evaluations")
    cards = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(history))
    return document(
        title,
        f"""<p class="lead">{escape(sentence(history))}</p>
<p class="sub">{escape(_summary(history))}</p>
{control_box(history)}
{_notes(history)}
{first}
{section("Members", caption, _members(history))}
{others}
{not_drawn}
{section("Decisions", "", _decisions(history))}
<details class="more"><summary>More: key figures, importance, config</summary>
<dl>{cards}</dl>
{"".join(shown[True])}
{nor_these}
{section("Config", "", _config(history))}
</details>""",
    )


def sentence(history: History) -> str:
    """Return the headline: the outcome of the run in one sentence."""
    counts = Counter(t.change.decision for t in history.decisions)
    said = [counted(history.population, "member")]
    if history.controls:
        said.append(counted(len(history.controls), "control"))
    if history.noise is not None and history.noise.comparisons:
        said.append(counted(history.noise.comparisons, "comparison"))
    elif history.population > 1 and not history.is_search:
        said.append("no comparison")
    said += [counted(counts[kind], *names) for kind, names in KINDS.items() if counts[kind]]
    return f"{', '.join(said)}; {'; '.join(filter(None, [_best(history), _moved(history)]))}."


def _best(history: History) -> str:
    best = history.best
    if best is not None:
        final, where = history.final, "in training"
        if final is not None and best in final.episodes:
            chance = "" if final.random_play is None else f" (random policy: {final.random_play:.4g})"
            where = f"over {final.episodes[best]} evaluation episodes{chance}"
        return f"best member {best}: {history.score(best):.4g} {where}"
    early = {m: one for m, one in history.now.items() if finite(one.early) is not None}
    population = [m for m in early if m not in history.controls]
    if not population:
        return "no member has a score yet"
    best = max(population, key=lambda m: (early[m].early, -m))
    one = early[best]
    return f"best so far member {best}: ~{one.early:.4g}, {one.ended} of {one.environments} environments"


def _moved(history: History) -> str:
    """Describe the value that changed most on the way to the best member's weights; empty if none did."""
    if history.best is None or history.is_search:
        return ""
    line = history.lineage.line(history.last[history.best].key)
    now = line[-1].values
    then = dict(line[0].values)
    for node in line:  # values set by the user at a resume were not moved by the controller
        then.update(history.lineage.typed.get(node.key, {}))
    name = next(iter(shown_values(then, now)), "")
    if not name:
        return ""
    options = history.options
    before, after = (
        text if isinstance(text := options.shown(name, one[name]), str) else value(text)
        for one in (then, now)
    )
    who = options.controller.upper() if options.controller == "pbt" else options.controller
    return f"{who} moved the {name.replace('_', ' ')} from {before} to {after}"


def facts(history: History) -> list[tuple[str, str]]:
    """Return the key figures as (name, value)."""
    unit, told = history.options.unit, history.told
    shown = [(f"{unit} of all members, summed", short(history.all_frames))]
    if history.entry_episodes > 1:
        shown.append(("an entry of a window", f"mean of {history.entry_episodes} episodes"))
    if told is not None and told.lag_mean is not None:
        shown.append(("age of rollouts, in optimiser steps", f"{told.lag_mean:.0f}, at most {told.lag_max}"))
    if not history.is_search and history.moments:
        shown.append(("surviving founders", f"{history.moments[-1].founders} of {history.population}"))
    if history.learners_lost:
        shown.append(("learners replaced", f"{len(history.learners_lost)}"))
    if history.actor_restarts:
        shown.append(("actor restarts", f"{history.actor_restarts}"))
    return shown


def _notes(history: History) -> str:
    lines = "".join(
        f"<li>{escape(note)}</li>" for note in [*notes(history), *_typed(history), *history.remarks]
    )
    return f'<ul class="none">{lines}</ul>' if lines else ""


def _typed(history: History) -> list[str]:
    """Return one line per resume at which the user gave all members other values."""
    nodes = {history.lineage[key].frames: values for key, values in history.lineage.typed.items()}
    return [
        f"At {short(frames)} {history.options.unit} you gave all members "
        f"{', '.join(f'{name} = {value(number)}' for name, number in values.items())}; no rule decided this."
        for frames, values in nodes.items()
    ]


def _summary(history: History) -> str:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(history.began))
    trained = (
        f"{short(history.frames)} {history.options.unit} of each in {duration(history.training_seconds)}"
    )
    end = (
        f"ended: {history.ended}"
        if history.ended
        else "no end is recorded: the run is still training, or was killed"
    )
    return f"{trained}. Controller {history.options.controller}, seed {history.seed}; started {began}; {end}."


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _members(history: History) -> str:
    states = {state["member"]: state | _young(history, state["member"]) for state in members(history)}
    for taken in history.decisions:
        if taken.change.stopped:
            states[taken.decision.member]["stopped"] = in_words(taken.decision.reason, taken.change)
    columns = ["member", "group", "final", "objective", "environments", "return", "length", "episodes"]
    columns += ["generation", "frames", "stopped", "founder", *map(value_column, history.varied)]
    known = {name for state in states.values() for name, cell in state.items() if cell not in (None, "")}
    names = [name for name in columns if name in known or name == "objective"]
    heads = {"frames": history.options.unit, "episodes": "evaluations" if history.options.api else "episodes"}
    head = "".join(
        f"<th{' class=left' * (name in ('group', 'stopped'))}>{escape(heads.get(name, name))}</th>"
        for name in names
    )
    body = [
        f'<tr class="{_kind(history, m)}">'
        + "".join(_cell(name, states[m].get(name)) for name in names)
        + "</tr>"
        for m in history.everyone
    ]
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{"".join(body)}</table></div>'


def _young(history: History, member: int) -> dict[str, str]:
    """Return mean so far and ended environments while the objective does not count yet."""
    now = history.now.get(member)
    if now is None or now.complete or not now.environments:
        return {"environments": ""}
    so_far = finite(now.early if now.objective is None else now.objective)
    marked = {} if so_far is None else {"objective": f"~{so_far:.4g}"}
    return {"environments": f"{now.ended} of {now.environments}", **marked}


def _kind(history: History, member: int) -> str:
    return "control" if member in history.controls else "best" if member == history.best else ""


def _cell(name: str, shown: object) -> str:
    if isinstance(shown, str) and name in ("group", "objective", "environments"):
        return f'<td class="{"" if name == "group" else "number"}">{shown or "-"}</td>'
    if isinstance(shown, str):
        return f'<td class="text">{escape(shown)}</td>'
    if shown is None:
        return '<td class="number">-</td>'
    assert isinstance(shown, int | float)
    text = short(shown) if name in ("frames", "episodes") else f"{shown:.4g}"
    return f'<td class="number">{text}</td>'


def _decisions(history: History) -> str:
    changes = [t for t in history.decisions if t.change.decision not in ("continue", "evaluate")]
    if not changes:
        return none("No member was changed or stopped.")
    lines = []
    for taken in changes[-LAST_DECISIONS:][::-1]:
        decision = taken.decision
        donor = getattr(decision, "donor", None)
        kind = taken.change.decision + (f" by {donor}" if donor is not None else "")
        objective = "-" if taken.objective is None else f"{taken.objective:.4g}"
        cells = (duration(taken.seconds), short(taken.frames), f"{decision.member}", kind, objective)
        shown = "".join(f"<td>{escape(c)}</td>" for c in cells)
        reason = escape(in_words(decision.reason, taken.change))
        lines.append(f"<tr>{shown}<td class=text>{reason}</td></tr>")
    counts = Counter("stopped" if t.change.stopped else "changed" for t in changes)
    title = " and ".join(f"{counted(n, 'time')} a member was {kind}" for kind, n in sorted(counts.items()))
    left_out = len(changes) > LAST_DECISIONS
    more = f"; the last {LAST_DECISIONS} are shown, all are in decisions.csv" if left_out else ""
    head = f"<tr><th>time</th><th>{history.options.unit}</th>"
    head += "<th>member</th><th>decision</th><th>objective</th><th>reason</th></tr>"
    return (
        f"<details><summary>{title}{more}</summary>"
        f'<div class="wide"><table>{head}{"".join(lines)}</table></div></details>'
    )


def _config(history: History) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in history.versions.items())
    source = f"; source {history.git}" if history.git else ""
    return (
        f'<p class="caption">{escape(versions + source)}</p><details><summary>config.json</summary>'
        f"<pre>{escape(json.dumps(history.config, indent=2))}</pre></details>"
    )


def write_report(run: Path, out: Path) -> list[Path]:
    """Write all files of the report into `out`; return their paths, the page first. Raises ConfigError.

    Symbolic links among the files of an earlier report are replaced, not followed. `out` itself may be a symbolic link
    only if it is outside the run's folder.
    """
    linked = os.path.islink(out)  # noqa: PTH114 - Path.is_symlink raises for a path that no file can have
    if linked and out.parent.resolve() == run.resolve():
        raise ConfigError(f"{out} is a symbolic link to {out.readlink()}: remove it, or give --out FOLDER")
    history = read_run(run)
    pictures = [(picture, draw(picture, history)) for picture in PICTURES]
    contents: dict[str, bytes] = {"report.html": page(history, pictures).encode()}
    contents |= {f"{p.name}.png": image for p, image in pictures if isinstance(image, bytes)}
    contents |= {name: text.encode() for name, text in files(history).items()}
    # An earlier report may contain figures that this one lacks.
    return write_files(out, contents, [f"{p.name}.png" for p, image in pictures if isinstance(image, str)])


def write_files(out: Path, contents: Mapping[str, bytes], absent: Sequence[str] = ()) -> list[Path]:
    """Write files into a folder, which is created if missing, and remove the files named in `absent`.

    Return the written paths. Raises ConfigError.
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
    """Replace a file, or a link of its name. Raises OSError; the old file is then unchanged."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

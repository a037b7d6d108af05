"""Report page of a run: one HTML document without JavaScript. `report.live` adds a script that renews the page."""

from __future__ import annotations

import base64
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from string import Template

from pbt_rl.controllers.changes import DecisionName
from pbt_rl.controllers.records import finite
from pbt_rl.display.ranking import clock, shown_values, two_values, value
from pbt_rl.display.terminal import counted, in_words
from pbt_rl.errors import ConfigError
from pbt_rl.record.history import History, read_run
from pbt_rl.report.exports import files, members, value_column
from pbt_rl.report.pictures import NOT_MEANT, PICTURES, Picture, draw
from pbt_rl.report.style import short
from pbt_rl.report.verdict import control_facts, notes

LAST_DECISIONS = 200
LONG = 24
"""Maximum number of characters of a text that the table does not wrap."""
NUMERIC = frozenset("~-+.0123456789")
"""Characters with which a number begins."""
QUIET_SECONDS = 120.0
"""The page of a running run shows the age of the last record if the record is older than this."""
KINDS: Mapping[DecisionName, tuple[str, str]] = {
    "replace": ("replacement", "replacements"),
    "mutate": ("mutation", "mutations"),
    "restart": ("restart", "restarts"),
    "stop": ("stopped", "stopped"),
}
ENDS = {
    "frames": "all frames trained",
    "seconds": "time budget used",
    "steps": "all steps taken",
    "objective": "target objective reached",
}
"""Reason for the end of a run -> text on the page. Other reasons are shown unchanged."""
MEMBERS_CAPTION = (
    "Last known state of each member, best first. Hyperparameters are shown if they differ between members or have "
    "changed (start → now). Objective: mean over the compared episodes (by default those since the last comparison, "
    "but at least one of every environment). After a change, the mean first grows by one episode of every environment "
    "at a time, and may lag behind the return. ~: some environments have not ended an episode since the change. "
    "Environments: number of environments that have ended an episode. Return: mean over the last 100 episodes since "
    "the change, without shaping. Final: mean over the final evaluation. Generation: number of changes. Founder: "
    "member from whose initial weights the present weights descend."
)
CONTROLS_CAPTION = (
    "One run shows the result for one seed. To find out whether PBT helps on this task, compare several seeds "
    "(pbt-rl prove). With too few controls, the score of the best control is estimated too low. If the same episodes "
    "select a member and score it, the score of the best member is biased upwards."
)
DECISIONS_CAPTION = (
    "Objective: mean over the compared episodes, by default those since the last decision about the member."
)
TEMPLATE = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


def document(title: str, body: str) -> str:
    """Return an HTML page with embedded style. title: plain text. body: HTML."""
    return TEMPLATE.substitute(title=escape(title), body=body)


def section(title: str, caption: str, body: str, name: str = "") -> str:
    """Return an HTML section of a page. If `body` is empty, the section has no heading.

    caption: text that a click on `?` shows, or "". body: HTML. name: HTML id, by default from the title.
    """
    note = (
        f'<details><summary>?</summary><p class="caption">{escape(caption)}</p></details>' if caption else ""
    )
    head = f'<div class="head"><h2>{escape(title)}</h2>{note}</div>\n' if title and body else ""
    return f'<section id="{name or title.lower().replace(" ", "-")}">{head}{body}</section>\n'


def image(data: bytes, alt: str) -> str:
    """Return a PNG file as an HTML image."""
    return picture(f"data:image/png;base64,{base64.b64encode(data).decode()}", alt)


def picture(source: str, alt: str) -> str:
    """Return an HTML image. source: URL of the image. alt: text if the browser does not show the image."""
    return f'<div class="wide"><img alt="{escape(alt)}" src="{escape(source)}"></div>'


def table(rows: Sequence[Mapping[str, object]], kinds: Sequence[str] = ()) -> str:
    """Return rows as an HTML table.

    rows: at least one. All have the same keys, the names of the columns. kinds: CSS class of each row.
    """
    head = "".join(f"<th{_side([row[name] for row in rows])}>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        f"<tr{f' class={kind}' if kind else ''}>{''.join(map(_cell, row.values()))}</tr>"
        for row, kind in zip_longest(rows, kinds, fillvalue="")
        if isinstance(row, Mapping)
    )
    return f'<div class="wide"><table>{"<tr>" + head + "</tr>" if any(rows[0]) else ""}{body}</table></div>'


def _cell(cell: object) -> str:
    return f"<td{_side([cell])}>{escape(_text(cell))}</td>"


def _side(cells: Sequence[object]) -> str:
    """Return the HTML attribute `class` of a cell or of a column of cells, or an empty text.

    Numbers (with or without a unit) are aligned right.
    """
    texts = [cell for cell in cells if isinstance(cell, str) and cell[:1] not in NUMERIC]
    return " class=text" if any(len(text) > LONG for text in texts) else "" if texts else " class=number"


def none(text: str) -> str:
    """Return the HTML of a sentence that replaces missing content."""
    return f'<p class="none">{escape(text)}</p>'


def items(lines: Sequence[str]) -> str:
    """Return lines of text as an HTML list. Empty without lines."""
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="none">{shown}</ul>' if shown else ""


def page(
    history: History,
    pictures: Sequence[tuple[Picture, bytes | str]],
    *,
    running: bool | None = None,
    age: float = 0.0,
    show: Callable[[Picture, bytes], str] | None = None,
) -> str:
    """Return the HTML of a report.

    pictures: (picture, PNG file or the reason why there is no figure). running: True if a process trains the run, None
    if unknown. age: seconds since the last record of a running run. show: function that returns the HTML of a picture.
    None: pictures are embedded in the page.
    """
    shown: dict[bool, list[str]] = {False: [], True: []}
    missing: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for one, drawn in pictures:
        body = ""
        if isinstance(drawn, bytes):
            body = image(drawn, one.title) if show is None else show(one, drawn)
        elif drawn not in NOT_MEANT:
            missing[one.more].setdefault(drawn, []).append(one.title)
        caption = one.caption.replace("frames", history.options.unit)
        shown[one.more].append(section(one.title, caption, body, one.name))
    first, others = "".join(shown[False][:1]), "".join(shown[False][1:])
    not_drawn, nor_these = (
        section("", "", items([f"{', '.join(titles)}: {why}" for why, titles in found.items()]), name)
        for found, name in zip(missing.values(), ("missing", "missing-more"), strict=True)
    )
    counted_in = "evaluations" if history.options.api else "episodes"
    cards = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(history))
    more = [one.title.lower() for one, drawn in pictures if one.more and isinstance(drawn, bytes)]
    behind = ", ".join(["key figures", *more, "config"])
    controls = [{"": name, " ": found} for name, found in control_facts(history)]
    box = f'<div class="box">{table(controls)}</div>' if controls else ""
    return document(
        f"{history.name}: {history.options.env}" if history.options.api is None else history.name,
        f"""<section id="lead"><p class="lead">{escape(sentence(history))}</p></section>
<section id="status">{status(history, running, age)}</section>
{section("Population and control group", CONTROLS_CAPTION, box, "controls")}
{section("", "", items([*notes(history), *_typed(history), *history.warnings]), "notes")}
{first}
{section("Members", MEMBERS_CAPTION.replace("episodes", counted_in), _members(history))}
{others}
{not_drawn}
{section("Decisions", DECISIONS_CAPTION, _decisions(history))}
<details class="more"><summary>More: {escape(behind)}</summary>
{section("", "", f"<dl>{cards}</dl>", "facts")}
{"".join(shown[True])}
{nor_these}
{section("Config", "", _config(history))}
</details>""",
    )


def status(history: History, running: bool | None, age: float = 0.0) -> str:
    """Return state, time, frames and speed of a run as HTML.

    running: True if a process trains the run. None if unknown.
    age: seconds since the last record, added to the training time and subtracted from the remaining time.
    """
    options, told = history.options, history.told
    left = None if told is None or not running else told.seconds_left
    passed = history.training_seconds + min(age, age if left is None else left)
    parts = [f"{clock(passed)} of training"]
    if left is not None:
        parts.append(f"{clock(left - age)} left")
    # A search sets the frames of each member itself.
    budget = None if options.train_for_seconds or history.is_search else options.train_for_frames
    of_budget = f" of {short(budget)}" if budget and history.ended is None else ""
    parts.append(f"{short(history.frames)}{of_budget} {options.unit} of each member")
    if running and told is not None and (told.stalled or told.frames_per_second is not None):
        parts.append(
            told.stalled or f"{short(told.frames_per_second or 0)} {options.unit}/s over all members"
        )
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(history.start.time))
    parts += [f"controller {options.controller}, seed {history.start.seed}", f"started {began}"]
    kind, badge = "", f"ended: {ENDS.get(history.ended or '', history.ended)}"
    if running:
        kind, badge = "good", "running" + f", last record {clock(age)} ago" * (age > QUIET_SECONDS)
    elif history.ended is None:
        unknown = "no end is recorded: the run is still training, or was killed"
        kind, badge = ("", unknown) if running is None else ("bad", "not running: killed or interrupted")
    share = (
        passed / max(1.0, passed + left - age)
        if left is not None
        else history.frames / budget
        if budget
        else 0.0
    )
    bar = f'<progress value="{min(1.0, share):.3f}"></progress>' if running else ""
    return f'<p class="sub"><span class="badge {kind}">{escape(badge)}</span> {escape(" · ".join(parts))}{bar}</p>'


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
            chance = "" if final.random_policy is None else f" (random policy: {final.random_policy:.4g})"
            where = f"over {final.episodes[best]} evaluation episodes{chance}"
        return f"best member {best}: {history.score(best):.4g} {where}"
    early = {m: one for m, one in history.now.items() if finite(one.early) is not None}
    population = [m for m in early if m not in history.controls]
    if not population:
        return "no member has a score yet"
    best = max(population, key=lambda m: (early[m].early, -m))
    one = early[best]
    return f"best member so far {best}: ~{one.early:.4g} in {one.ended} of {one.environments} environments"


def _moved(history: History) -> str:
    """Describe the largest change of a value along the best member's lineage.

    Empty if no value changed, and for a search.
    """
    if history.best is None or history.is_search:
        return ""
    line = history.lineage.line(history.last[history.best].key)
    now = line[-1].values
    then = dict(line[0].values)
    for node in line:  # values that the user set at a resume are not changes by the controller
        then.update(history.lineage.typed.get(node.key, {}))
    name = next(iter(shown_values(then, now)), "")
    if not name:
        return ""
    options = history.options
    before, after = _change(history, name, then[name], now[name])
    who = options.controller.upper() if options.controller == "pbt" else options.controller
    return f"{who} moved {name} from {before} to {after} along its lineage"


def facts(history: History) -> list[tuple[str, str]]:
    """Return the key figures of a run as (name, value)."""
    unit, told = history.options.unit, history.told
    shown = [(f"{unit} of all members, summed", short(history.all_frames))]
    if history.entry_episodes > 1:
        shown.append(("episodes per entry of the window", f"{history.entry_episodes}"))
    if told is not None and told.lag_mean is not None:
        shown.append(("rollout age, in optimiser steps", f"{told.lag_mean:.0f}, at most {told.lag_max}"))
    if not history.is_search and history.points:
        shown.append(("surviving founders", f"{history.founders} of {history.population}"))
    if history.learners_lost:
        shown.append(("learners replaced", f"{len(history.learners_lost)}"))
    if history.actor_restarts:
        shown.append(("actor restarts", f"{history.actor_restarts}"))
    return shown


def _typed(history: History) -> list[str]:
    """Return one line for each resume at which the user changed values of all members."""
    nodes = {history.lineage[key].frames: values for key, values in history.lineage.typed.items()}
    return [
        f"At {short(frames)} {history.options.unit} you gave all members "
        f"{', '.join(f'{name} = {value(number)}' for name, number in values.items())}; no rule decided this."
        for frames, values in nodes.items()
    ]


def _members(history: History) -> str:
    """Return the table of the members as HTML, best member first.

    Columns without content are left out, except the objective.
    """
    states = {}
    for state in members(history):
        now = history.now.get(state["member"])
        if now is not None and not now.complete and now.environments:  # the objective is not complete yet
            so_far = finite(now.early if now.objective is None else now.objective)
            state["objective"] = None if so_far is None else f"~{so_far:.4g}"
            state["environments"] = f"{now.ended} of {now.environments}"
        states[state["member"]] = state
    for taken in history.decisions:
        if taken.change.stopped:
            states[taken.decision.member]["stopped"] = in_words(taken.decision.reason, taken.change)
    columns = ["member", "group", "final", "objective", "environments", "return", "length", "episodes"]
    columns += ["generation", "frames", "stopped", "founder", *map(value_column, history.varied)]
    known = {name for state in states.values() for name, cell in state.items() if cell not in (None, "")}
    heads = {"frames": history.options.unit, "episodes": "evaluations" if history.options.api else "episodes"}
    rows = [
        {
            heads.get(name, name): short(cell) if name in heads and isinstance(cell, int) else cell
            for name in columns
            if name in known | {"objective"}
            for cell in [moved.get(name, states[m].get(name))]
        }
        for m in history.everyone
        for moved in [_moves(history, m)]
    ]
    kinds = ["control" if m in history.controls else "best" * (m == history.best) for m in history.everyone]
    return table(rows, kinds) if rows else none("No member has started.")


def _moves(history: History, member: int) -> dict[str, str]:
    """Return column name -> text `start → now` for the values of a member that differ from its start values."""
    path = history.lineage.path(member)
    pairs = ((n, path[0].values[n], path[-1].values[n]) for n in history.varied)
    return {value_column(n): " → ".join(_change(history, n, a, b)) for n, a, b in pairs if a != b}


def _change(history: History, name: str, then: float, now: float) -> tuple[str, str]:
    """Return a value before and after a change as texts. For a choice: the texts of both indices."""
    before, after = (history.options.shown(name, number) for number in (then, now))
    return (before, after) if isinstance(before, str) and isinstance(after, str) else two_values(then, now)


def _text(cell: object) -> str:
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _decisions(history: History) -> str:
    changes = [t for t in history.decisions if t.change.decision not in ("continue", "evaluate")]
    if not changes:
        return none("No member was changed or stopped.")
    rows = [
        {
            "time": clock(history.trained_until(taken.seconds)),
            history.options.unit: short(taken.frames),
            "member": taken.decision.member,
            "decision": taken.change.decision
            + (f" by {donor}" if (donor := taken.donor) is not None else ""),
            "objective": taken.objective,
            "reason": in_words(taken.decision.reason, taken.change),
        }
        for taken in changes[: -LAST_DECISIONS - 1 : -1]
    ]
    counts = Counter("stop" if t.change.stopped else "change" for t in changes)
    title = " and ".join(counted(n, kind) for kind, n in sorted(counts.items())) + " of members"
    left_out = f"; the last {LAST_DECISIONS} are shown, all are in decisions.csv"
    more = left_out if len(changes) > LAST_DECISIONS else ""
    return f"<details><summary>{title}{more}</summary>{table(rows)}</details>"


def _config(history: History) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in history.start.versions.items())
    source = f"; source {history.start.git}" if history.start.git else ""
    return (
        f'<p class="caption">{escape(versions + source)}</p><details><summary>config.json</summary>'
        f"<pre>{escape(json.dumps(history.config, indent=2))}</pre></details>"
    )


def write_report(run: Path, out: Path, begins: Callable[[], object] = lambda: None) -> list[Path]:
    """Write all files of the report into `out`. Return their paths, the page first.

    Raises ConfigError if the run cannot be read, or `out` cannot be written.
    begins: function that is called after all checks, before the figures are drawn (which takes seconds).
    If a file of an earlier report is a symbolic link, the link is replaced. `out` must not be a symbolic link directly
    in the run's folder.
    """
    linked = os.path.islink(out)  # noqa: PTH114 - Path.is_symlink raises for a path that no file can have
    if linked and out.parent.resolve() == run.resolve():
        raise ConfigError(f"{out} is a symbolic link to {out.readlink()}: remove it, or give --out FOLDER")
    history = read_run(run)
    make_folder(out)
    begins()
    pictures = [(picture, draw(picture, history)) for picture in PICTURES]
    contents: dict[str, bytes] = {"report.html": page(history, pictures).encode()}
    contents |= {f"{p.name}.png": image for p, image in pictures if isinstance(image, bytes)}
    contents |= {name: text.encode() for name, text in files(history).items()}
    # An earlier report may contain figures that this report does not contain.
    return write_files(out, contents, [f"{p.name}.png" for p, image in pictures if isinstance(image, str)])


def make_folder(out: Path) -> None:
    """Create the folder of --out. Raises ConfigError if this fails."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error


def write_files(out: Path, contents: Mapping[str, bytes], absent: Sequence[str] = ()) -> list[Path]:
    """Write files into a folder, and remove the files in `absent`. Return the written paths.

    Raises ConfigError if writing fails.
    """
    make_folder(out)
    try:
        for name in absent:
            (out / name).unlink(missing_ok=True)
        for name, content in contents.items():
            _replace(out / name, content)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from error
    return [out / name for name in contents]


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically. An old file or symbolic link is replaced, or is unchanged if this raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with draft.open("xb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)

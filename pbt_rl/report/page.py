"""The page of a report: one HTML file with everything inside, without network or JavaScript."""

from __future__ import annotations

import base64
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from statistics import fmean

from pbt_rl.controllers.changes import DecisionName
from pbt_rl.display.terminal import counted, in_words
from pbt_rl.report.exports import members, value_column
from pbt_rl.report.pictures import NOT_MEANT, Picture
from pbt_rl.report.read import History
from pbt_rl.report.style import short
from pbt_rl.report.verdict import control_box, notes

LAST_DECISIONS = 200
MEMBERS_CAPTION = (
    "In their last known state, best first, with the values that differ between members or changed. Final: mean of "
    "fresh episodes after training, if they were played."
)
CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .3rem; }
.sub, .caption, .none { color: #5b6675; } .caption { font-size: .87rem; margin: .1rem 0 .6rem; max-width: 50rem; }
.none { background: #f6f7f9; border-radius: .4rem; padding: .6rem .9rem; }
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
.box { border: 2px solid #1d4ed8; border-radius: .4rem; padding: .2rem 1rem; margin: 1rem 0; }
.box h2 { margin: .4rem 0; }
tr.control td { background: #f3e8ff; } tr.best td { color: #c2410c; font-weight: 600; }
summary { cursor: pointer; color: #1d4ed8; margin: .4rem 0; }
pre { font-size: .78rem; background: #f6f7f9; padding: 1rem; border-radius: .4rem; overflow-x: auto; }
"""


def page(history: History, pictures: Sequence[tuple[Picture, bytes | str]]) -> str:
    """Return the HTML. pictures: each with its PNG file, or the reason why there is none."""
    title = f"{history.name}: {history.options.env}" if history.options.api is None else history.name
    unit = history.options.unit
    drawn = [(p, image) for p, image in pictures if isinstance(image, bytes)]
    first = [_section(p.title, p.caption.replace("frames", unit), _shown(p, image)) for p, image in drawn[:1]]
    others = [
        _section(p.title, p.caption.replace("frames", unit), _shown(p, image)) for p, image in drawn[1:]
    ]
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{CSS}</style></head>
<body>
<h1>{escape(title)}</h1>
<p class="sub">{escape(_summary(history))}</p>
{control_box(history)}
<dl>{"".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(history))}</dl>
{_notes(history)}
{"".join(first)}
{_section("Members", MEMBERS_CAPTION, _members(history))}
{"".join(others)}
{_not_drawn(pictures)}
{_section("Decisions", "", _decisions(history))}
{_section("Config", "", _config(history))}
</body>
</html>
"""


def facts(history: History) -> list[tuple[str, str]]:
    """Return the key figures as (name, value)."""
    last = history.ranking
    controls = f" + {counted(len(history.controls), 'control')}" if history.controls else ""
    shown = [("members", f"{history.population}{controls}")]
    if last:
        best = history.objective(history.last[last[0]])
        shown += [("best objective", f"{best:.4g}"), ("best member", f"{last[0]}")]
    if history.entry_episodes > 1:
        shown.append(("an entry of a window", f"mean of {history.entry_episodes} episodes"))
    played = {} if history.final is None else history.final.means
    finite = [x for x in played.items() if math.isfinite(x[1]) and x[0] not in history.controls]
    if history.final is not None and finite:
        chosen = max(finite, key=lambda item: item[1])
        games = f"member {chosen[0]}: {chosen[1]:.4g} over {history.final.episodes}"
        shown.append(("best of final games", games))
    trained = sum(points[-1].frames for points in history.curves.values() if points)
    shown += [(f"{history.options.unit}, all members", short(trained)), ("time", duration(history.seconds))]
    counts = Counter(t.change.decision for t in history.decisions)
    named: list[tuple[DecisionName, str]] = [
        ("replace", "replaced"),
        ("mutate", "mutated"),
        ("restart", "restarted"),
        ("stop", "stopped"),
    ]
    shown += [(name, f"{counts[kind]}") for kind, name in named if counts[kind]]
    if not history.is_search and history.moments:
        shown.append(("surviving founders", f"{history.moments[-1].founders} of {history.population}"))
    if history.occupancy is not None:
        shown.append(("occupancy", f"{history.occupancy:.1%} of {history.slots} slots"))
    if history.completion is not None:
        text = f"{history.completion:.1%}"
        search = history.options.search
        if history.options.controller == "hypertrick" and search.phases:
            shares = [(1 - search.eviction_rate) ** phase for phase in range(search.phases)]
            text += f" (expected {fmean(shares):.1%})"  # Heinrich and Frosio 2019, equation 9
        shown.append(("completion rate", text))
    if history.actor_restarts:
        shown.append(("actor restarts", f"{history.actor_restarts}"))
    return shown


def _notes(history: History) -> str:
    lines = "".join(f"<li>{escape(note)}</li>" for note in [*notes(history), *history.remarks])
    return f'<ul class="none">{lines}</ul>' if lines else ""


def _summary(history: History) -> str:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(history.began))
    end = (
        f"ended: {history.ended}" if history.ended else "no end is recorded: the run goes on, or was cut off"
    )
    return f"Controller {history.options.controller}, seed {history.seed}. Started {began}; {end}."


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _section(title: str, caption: str, body: str) -> str:
    note = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f"<h2>{escape(title)}</h2>\n{note}\n{body}\n"


def _shown(picture: Picture, image: bytes) -> str:
    data = base64.b64encode(image).decode()
    return f'<div class="wide"><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}"></div>'


def _not_drawn(pictures: Sequence[tuple[Picture, bytes | str]]) -> str:
    """Say why pictures are missing that this run could have; those of other kinds of runs are left out."""
    lines = [
        f"<li>{escape(p.title)}: {escape(why)}</li>"
        for p, why in pictures
        if isinstance(why, str) and why not in NOT_MEANT
    ]
    return _section("Not drawn", "", f'<ul class="none">{"".join(lines)}</ul>') if lines else ""


def _members(history: History) -> str:
    states = {state["member"]: state for state in members(history)}
    for taken in history.decisions:
        if taken.change.stopped:
            states[taken.decision.member]["stopped"] = in_words(taken.decision.reason, taken.change)
    stopped = ["stopped"] if any(state["stopped"] for state in states.values()) else []
    final = ["final"] if history.final is not None else []
    group = ["group"] if history.controls else []
    names = ["member", *group, "objective", *final, "generation", "frames", *stopped, "founder"]
    names += map(value_column, history.varied)
    unit = history.options.unit
    head = "".join(
        f"<th{' class=left' * (name in ('group', 'stopped'))}>{escape(unit if name == 'frames' else name)}</th>"
        for name in names
    )
    body = [
        f'<tr class="{_kind(history, m)}">'
        + "".join(_cell(name, states[m].get(name)) for name in names)
        + "</tr>"
        for m in history.everyone
    ]
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{"".join(body)}</table></div>'


def _kind(history: History, member: int) -> str:
    return "control" if member in history.controls else "best" if [member] == history.ranking[:1] else ""


def _cell(name: str, value: object) -> str:
    if name == "group":
        return f"<td>{value}</td>"
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    if value is None:
        return '<td class="number">-</td>'
    assert isinstance(value, int | float)
    shown = short(value) if name == "frames" else f"{value:.4g}"
    return f'<td class="number">{shown}</td>'


def _decisions(history: History) -> str:
    changes = [t for t in history.decisions if t.change.decision not in ("continue", "evaluate")]
    if not changes:
        return '<p class="none">No member was changed or stopped.</p>'
    lines = []
    for taken in changes[-LAST_DECISIONS:][::-1]:
        decision = taken.decision
        donor = getattr(decision, "donor", None)
        kind = taken.change.decision + (f" by {donor}" if donor is not None else "")
        objective = "-" if taken.objective is None else f"{taken.objective:.4g}"
        cells = (duration(taken.seconds), short(taken.frames), f"{decision.member}", kind, objective)
        shown, reason = (
            "".join(f"<td>{escape(c)}</td>" for c in cells),
            escape(in_words(decision.reason, taken.change)),
        )
        lines.append(f"<tr>{shown}<td class=text>{reason}</td></tr>")
    counts = Counter("stopped" if t.change.stopped else "changed" for t in changes)
    title = " and ".join(f"{counted(n, 'time')} a member was {kind}" for kind, n in sorted(counts.items()))
    more = (
        f"; the last {LAST_DECISIONS} are shown, all are in decisions.csv"
        if len(changes) > LAST_DECISIONS
        else ""
    )
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

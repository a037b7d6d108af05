"""The page of a report: one HTML file with everything inside; it needs no network and no JavaScript."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Sequence
from html import escape

from pbt_rl.pbt.decisions import Continue, Stop
from pbt_rl.pbt.search.hypertrick import expected_completion
from pbt_rl.report.exports import members
from pbt_rl.report.pictures import Picture
from pbt_rl.report.read import Record
from pbt_rl.report.style import short

LAST_DECISIONS = 200
CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .3rem; }
.sub, .caption, .none { color: #5b6675; } .caption { font-size: .87rem; margin: .1rem 0 .6rem; max-width: 50rem; }
.none { background: #f6f7f9; border-radius: .4rem; padding: .6rem .9rem; }
img { max-width: 100%; height: auto; display: block; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
dl div { background: #f6f7f9; border-radius: .4rem; padding: .5rem .8rem; } dt { font-size: .78rem; color: #5b6675; }
dd { margin: 0; font-size: 1.12rem; font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .83rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: #5b6675; font-weight: 600; vertical-align: bottom; }
th, td { padding: .22rem .7rem .22rem 0; border-bottom: 1px solid #e5e9f0; white-space: nowrap; }
td.number, table.numbers th { text-align: right; } td.text { white-space: normal; min-width: 13rem; }
tr.best td { color: #c2410c; font-weight: 600; }
summary { cursor: pointer; color: #1d4ed8; margin: .4rem 0; }
pre { font-size: .78rem; background: #f6f7f9; padding: 1rem; border-radius: .4rem; overflow-x: auto; }
"""


def page(record: Record, pictures: Sequence[tuple[Picture, bytes | str]]) -> str:
    """The whole file. pictures: each with its PNG file, or why there is none."""
    title = f"{record.name}: {record.config.get('env', 'a run')}"
    sections = [_section(p.title, p.caption, _shown(p, image)) for p, image in pictures]
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{CSS}</style></head>
<body>
<h1>{escape(title)}</h1>
<p class="sub">{escape(_summary(record))}</p>
<dl>{"".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts(record))}</dl>
{sections[0]}
{_section("Members", "As last seen, best first; values that differ between members or changed.", _members(record))}
{"".join(sections[1:])}
{_section("What happened", "", _happened(record))}
{_section("Config", "", _config(record))}
</body>
</html>
"""


def facts(record: Record) -> list[tuple[str, str]]:
    """What matters most, as (name, value)."""
    last = record.ranking
    shown = [("members", f"{len(record.last)}")]
    if last:
        best = record.objective(record.last[last[0]])
        shown += [("best objective", f"{best:.4g}"), ("best member", f"{last[0]}")]
    trained = sum(points[-1].frames for points in record.curves.values() if points)
    shown += [("frames, all members", short(trained)), ("time", _duration(record.seconds))]
    counts = Counter(type(t.decision).__name__ for t in record.decisions)
    for kind, name in (
        ("Replace", "replaced"),
        ("Mutate", "mutated"),
        ("Restart", "restarted"),
        ("Stop", "stopped"),
    ):
        if counts[kind]:
            shown.append((name, f"{counts[kind]}"))
    if not record.is_search and record.moments:
        shown.append(("founders left", f"{record.moments[-1].roots} of {len(record.last)}"))
    if record.occupancy is not None:
        shown.append(("occupancy", f"{record.occupancy:.1%} of {record.slots} slots"))
    if record.completion is not None:
        text = f"{record.completion:.1%}"
        if record.config.get("controller") == "hypertrick":
            search = record.config["search"]
            text += f" (expected {expected_completion(search['eviction_rate'], search['phases']):.1%})"
        shown.append(("completion rate", text))
    if record.actor_restarts:
        shown.append(("actor restarts", f"{record.actor_restarts}"))
    return shown


def _summary(record: Record) -> str:
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.began))
    end = f"ended: {record.ended}" if record.ended else "no end is recorded: it goes on, or was cut off"
    controller = record.config.get("controller", "pbt")
    return f"Controller {controller}, seed {record.seed}. Began {began}; {end}."


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _section(title: str, caption: str, body: str) -> str:
    said = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f"<h2>{escape(title)}</h2>\n{said}\n{body}\n"


def _shown(picture: Picture, image: bytes | str) -> str:
    if isinstance(image, str):
        return f'<p class="none">{escape(image)}</p>'
    data = base64.b64encode(image).decode()
    return f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'


def _members(record: Record) -> str:
    rows = {row["member"]: row for row in members(record)}
    order = [*record.ranking, *(m for m in rows if m not in record.ranking)]
    stopped = ["stopped"] if any(row["stopped"] for row in rows.values()) else []
    names = ["member", "objective", "generation", "frames", *stopped, "founder", *record.varied]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = [
        f"<tr{' class=best' if order[0] == m and record.ranking else ''}>"
        + "".join(_cell(name, rows[m].get(name)) for name in names)
        + "</tr>"
        for m in order
    ]
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{"".join(body)}</table></div>'


def _cell(name: str, value: object) -> str:
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    if value is None:
        return '<td class="number">-</td>'
    assert isinstance(value, int | float)
    shown = short(value) if name == "frames" else f"{value:.4g}"
    return f'<td class="number">{shown}</td>'


def _happened(record: Record) -> str:
    changes = [t for t in record.decisions if not isinstance(t.decision, Continue)]
    if not changes:
        return '<p class="none">No member has been changed or stopped.</p>'
    rows = []
    for taken in changes[-LAST_DECISIONS:][::-1]:
        decision = taken.decision
        donor = getattr(decision, "donor", None)
        what = type(decision).__name__.lower() + (f" by {donor}" if donor is not None else "")
        objective = "-" if taken.objective is None else f"{taken.objective:.4g}"
        cells = (_duration(taken.seconds), short(taken.frames), f"{decision.member}", what, objective)
        rows.append(
            f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in cells)}<td class=text>{escape(decision.reason)}</td></tr>"
        )
    counts = Counter("stopped" if isinstance(t.decision, Stop) else "changed" for t in changes)
    said = " and ".join(f"{n} times a member was {what}" for what, n in sorted(counts.items()))
    more = (
        f"; the last {LAST_DECISIONS} are shown, all are in decisions.csv"
        if len(changes) > LAST_DECISIONS
        else ""
    )
    head = "<tr><th>time</th><th>frames</th><th>member</th><th>decision</th><th>objective</th><th>reason</th></tr>"
    return (
        f"<details><summary>{said}{more}</summary>"
        f'<div class="wide"><table>{head}{"".join(rows)}</table></div></details>'
    )


def _config(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    source = f"; source {record.git}" if record.git else ""
    return (
        f'<p class="caption">{escape(versions + source)}</p><details><summary>config.json</summary>'
        f"<pre>{escape(json.dumps(record.config, indent=2))}</pre></details>"
    )

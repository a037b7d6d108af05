"""CSV tables of a run: members, lineages, objectives, evaluations, decisions, slots, phases."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from pbt_rl.controllers.decisions import StateKey
from pbt_rl.controllers.lineage import Node
from pbt_rl.controllers.records import finite
from pbt_rl.record.history import History
from pbt_rl.record.run_options import FRAMES

COLUMNS = frozenset(
    {
        "member", "group", "node", "generation", "parent", "base", "founder", "depth", "objective", "final", "frames",
        "stopped", "steps", "return", "length", "episodes",
        "began_frames", "began_own_frames", "weights_trained_frames", "weights_trained_frames_at_end",
        "began_steps", "began_own_steps", "weights_trained_steps", "weights_trained_steps_at_end",
    }
)  # fmt: skip
"""Columns of members.csv and nodes.csv that are not values of members."""
OF_GAMES = ("member", "mean", "spread", "episodes")
OF_DECISIONS = ("donor", "donor_generation", "copy", "until_frames")
COUNTS = COLUMNS | {"until_frames"}


def files(history: History) -> dict[str, str]:
    """Return the CSV files of a run: file name -> text. Empty tables are left out."""
    tables = {
        "members.csv": members(history),
        "nodes.csv": nodes(history),
        "objective.csv": [vars(point) for point in history.points],
        "evaluations.csv": [
            {"frames": e.at_frames} | {name: getattr(e, name) for name in OF_GAMES}
            for e in history.evaluations
        ],
        "decisions.csv": decisions(history),
        "slots.csv": [vars(time_slice) for time_slice in history.time_slices],
        "phases.csv": [vars(phase) for phase in history.phases],
    }
    unit = history.options.unit
    return {
        name: table_text([{_counted(column, unit): cell for column, cell in row.items()} for row in records])
        for name, records in tables.items()
        if records
    }


def _counted(column: str, unit: str) -> str:
    """Return the name of a column. In columns of COUNTS, replace "frames" by the unit of the run (frames or steps)."""
    return column.replace(FRAMES, unit) if column in COUNTS else column


def label(key: StateKey) -> str:
    """Return the name of a node in the lineages: m3g2 is member 3 after its second change."""
    return f"m{key[0]}g{key[1]}"


def value_column(name: str) -> str:
    """Return the column name of a member's value: NAME, or `value.NAME` if COLUMNS contains NAME."""
    return f"value.{name}" if name in COLUMNS else name


def members(history: History) -> list[dict[str, Any]]:
    """Return one record per member, with the member's last known state."""
    stopped = {t.decision.member: t.decision.reason for t in history.decisions if t.change.stopped}
    records = []
    for member, node in history.last.items():
        points, now = history.curves[member], history.now.get(member)
        group = "control" if member in history.controls else "population"
        records.append(
            {
                "member": member,
                **({"group": group} if history.controls else {}),
                "objective": history.objective(node),
                **({"final": finite(history.final_scores.get(member))} if history.final_scores else {}),
                "return": None if now is None else finite(now.raw_return),
                "length": None if now is None else finite(now.length_steps),
                "episodes": now.episodes if now else points[-1].episodes if points else None,
                "generation": node.generation,
                "frames": points[-1].frames if points else 0,
                "weights_trained_frames": history.lineage.end_trained(node.key),
                "founder": history.lineage.line(node.key)[0].member,
                "stopped": stopped.get(member, ""),
                **_values(history, node),
            }
        )
    return records


def nodes(history: History) -> list[dict[str, Any]]:
    """Return one record per node of the lineages. A node is a member between two of its changes (a generation)."""
    lineage = history.lineage
    return [
        {
            "node": label(node.key),
            "member": node.member,
            "generation": node.generation,
            "parent": label(node.parent) if node.parent else "",
            "base": label(node.base) if node.base else "",
            "founder": label(lineage.line(node.key)[0].key),
            "depth": node.depth,
            "began_frames": node.frames,
            "began_own_frames": node.own_frames,
            "weights_trained_frames": node.trained,
            "weights_trained_frames_at_end": lineage.end_trained(node.key),
            "objective": history.objective(node),
            **_values(history, node),
        }
        for node in lineage.nodes
    ]


def _values(history: History, node: Node) -> dict[str, float | str]:
    return {value_column(name): history.options.shown(name, value) for name, value in node.values.items()}


def decisions(history: History) -> list[dict[str, Any]]:
    """Return one record per decision of the run."""
    return [
        {
            "seconds": taken.seconds,
            "frames": taken.frames,
            "member": taken.decision.member,
            "decision": taken.change.decision,
            **{name: getattr(taken.decision, name, "") for name in OF_DECISIONS},
            "objective": taken.objective,
            "reason": taken.decision.reason,
        }
        for taken in history.decisions
    ]


def table_text(records: Sequence[dict[str, Any]]) -> str:
    """Return records as CSV text. A column is written if any record has it."""
    columns = dict.fromkeys(name for record in records for name in record)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()

"""The tables of a run for other programs: CSV, DOT (Graphviz), Newick (programs for phylogenies)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pbt_rl.pbt.decisions import StateKey, Stop
from pbt_rl.report.read import Record


def files(record: Record) -> dict[str, str]:
    """Name -> text of every file."""
    tables = {
        "members.csv": members(record),
        "nodes.csv": nodes(record),
        "objective.csv": [asdict(point) for moment in record.moments for point in moment.points],
        "decisions.csv": decisions(record),
        "slots.csv": [asdict(stay) for stay in record.stays],
        "phases.csv": [asdict(phase) for phase in record.phases],
    }
    texts = {name: _csv(rows) for name, rows in tables.items() if rows}
    return texts | {"lineage.dot": dot(record), "lineage.nwk": newick(record)}


def label(key: StateKey) -> str:
    """Name of a node in all files: m3g2 is member 3 after its second change."""
    return f"m{key[0]}g{key[1]}"


def members(record: Record) -> list[dict[str, Any]]:
    """One row a member, as it was last seen."""
    stopped = {t.decision.member: t.decision.reason for t in record.decisions if isinstance(t.decision, Stop)}
    rows = []
    for member, node in record.last.items():
        points = record.curves[member]
        rows.append(
            {
                "member": member,
                "objective": record.objective(node),
                "generation": node.generation,
                "frames": points[-1].frames if points else 0,
                "weights_trained_frames": record.lineage.end_trained(node.key),
                "founder": record.lineage.line(node.key)[0].member,
                "stopped": stopped.get(member, ""),
                **node.values,
            }
        )
    return rows


def nodes(record: Record) -> list[dict[str, Any]]:
    """One row a node of the lineage: a member between two changes."""
    lineage = record.lineage
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
            "objective": record.objective(node),
            **node.values,
        }
        for node in lineage.nodes
    ]


def decisions(record: Record) -> list[dict[str, Any]]:
    """One row a decision."""
    return [
        {
            "seconds": taken.seconds,
            "frames": taken.frames,
            "member": taken.decision.member,
            "decision": type(taken.decision).__name__.lower(),
            "donor": getattr(taken.decision, "donor", ""),
            "donor_generation": getattr(taken.decision, "donor_generation", ""),
            "copy": getattr(taken.decision, "copy", ""),
            "until_frames": getattr(taken.decision, "until_frames", ""),
            "objective": taken.objective,
            "reason": taken.decision.reason,
        }
        for taken in record.decisions
    ]


def dot(record: Record) -> str:
    """Graph of all nodes: a solid edge is a copy of weights, a dashed one leads from what was dropped for it."""
    lines = ["digraph lineage {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for node in record.lineage.nodes:
        objective = record.objective(node)
        text = f"member {node.member}, generation {node.generation}"
        shown = "no objective" if objective is None else f"{objective:.6g}"
        lines.append(f'  {label(node.key)} [label="{text}\\n{shown}"];')
        if node.parent is not None:
            lines.append(f"  {label(node.parent)} -> {label(node.key)};")
        if node.base is not None:
            lines.append(f"  {label(node.base)} -> {label(node.key)} [style=dashed, color=gray];")
    return "\n".join([*lines, "}"]) + "\n"


def newick(record: Record) -> str:
    """One tree a line. A branch is as long as the weights were trained from one change to the next."""
    texts: dict[StateKey, str] = {}
    lineage = record.lineage
    for node in reversed(lineage.nodes):  # children are younger than their parents
        inner = ",".join(texts.pop(key) for key in lineage.children(node.key))
        length = node.trained - lineage[node.parent].trained if node.parent else 0
        texts[node.key] = (f"({inner})" if inner else "") + f"{label(node.key)}:{length}"
    return "".join(f"{text};\n" for text in reversed(texts.values()))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))

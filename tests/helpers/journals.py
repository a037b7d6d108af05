"""Journals of simulated runs: any controller over simulated members, written as a run writes them."""

import json
import math
from itertools import groupby

from pbt_rl.config import Config, Hypers
from pbt_rl.controllers.decisions import decision_to_dict
from pbt_rl.controllers.events import decode_event
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.record.folder import to_json
from pbt_rl.record.journal import as_json_types
from pbt_rl.run.resolved import build_controller, value_table
from tests.helpers.simulation import simulate

FRAMES_PER_SECOND = 1000.0
TABLE = hyper_table(Hypers())
PBT = PbtConfig(period_frames=10_000, start_frames=10_000, min_episodes=1, mutation_rate=0.5)


def score(member, trained, values, rng):
    """The learning rate matters most, then gamma; more training is better, and there is noise."""
    lr = (math.log10(values["learning_rate"]) + 3.3) ** 2
    gamma = 0.3 * (math.log10(1 - values["gamma"]) + 2) ** 2
    return 100 * (1 - math.exp(-trained / 40_000)) * math.exp(-lr - gamma) + rng.gauss(0, 2)


def speed(member, trained, values, rng):
    return FRAMES_PER_SECOND * rng.uniform(0.7, 1.3)


def simulated(controller, members, slots, config, **options):
    """Events of a run of this controller. config: options of the `Config` that is written down."""
    first = []
    draw = controller.initial
    controller.initial = lambda number: first.extend(draw(number)) or first
    result = simulate(controller, members, slots, speed=speed, score=score, **options)
    spec = {"shaping": {}, "frame_skip": 1}
    written = to_json(Config(env="toy/simulated", num_policies=members, slots=slots, name="sim", **config))
    events = [
        (0.0, 0, {"event": "start", "config": written, "seed": 0, "versions": {}, "git": None, "spec": spec})
    ]
    events.append((0.0, 0, {"event": "initial", "values": first}))
    for slot in range(slots):
        chunks = sorted((s for s in result.stays if s.slot == slot), key=lambda s: s.begin)
        before = None
        for member, stays in groupby(chunks, key=lambda s: s.member):
            events.append((next(stays).begin, 0, slot_event(slot, before, member)))
            before = member
        events.append((chunks[-1].end, 0, slot_event(slot, before, None)))
    for time, report, decisions in result.rounds:
        shown = {"event": "round", "report": report, "decisions": [decision_to_dict(d) for d in decisions]}
        events.append((time, report.frames, shown))
    events.append((result.total_time, 0, {"event": "end", "ended": "done"}))
    return [
        {"time": 1.7e9 + time, "frames": frames, **as_json_types(event)}
        for time, frames, event in sorted(events, key=lambda e: e[0])
    ]


def run_of(population, slots=None, seed=0, limit=None, **options):
    """Events of a run with these options, its controller built as a real run's is. limit: frames of a member."""
    config = Config(env="toy/simulated", num_policies=population, seed=seed, **options)
    controller, members = build_controller(config, value_table(config, {}), seed), config.members
    frames = {"chunk_frames": 10_000, "limit_frames": limit} if limit else {}
    events = simulated(controller, members, slots or members, {"seed": seed, **options}, **frames)
    events[0]["config"] |= {"num_policies": population}
    return [events[0] | {"seed": seed}, *events[1:]]


def slot_event(slot, leaves, enters):
    return {"event": "slot", "pack": 0, "slot": slot, "leaves": leaves, "enters": enters}


def write(folder, events):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (folder / "config.json").write_text(json.dumps(events[0]["config"]))
    return folder


def read_events(records):
    """Return the events of records, as JSON types, that were not written to a file."""
    return [decode_event(json.dumps(record).encode(), i) for i, record in enumerate(records, start=1)]

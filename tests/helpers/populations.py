"""Small reports for the tests of the controller's parts."""

from hypothesis import settings

from pbt_rl.config import Config
from pbt_rl.controllers.decisions import MemberReport, PopulationReport
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.run.resolved import build_controller

settings.register_profile("no deadline", deadline=None)  # others compute beside us
settings.load_profile("no deadline")

OFTEN = PbtConfig(period_frames=100, start_frames=0, min_episodes=1, exploit="truncation", replace_gap=0.0)
"""A comparison every 100 frames, in which the best replace the worst however close they are."""


def build(pbt, table, seed, num_members=10, controller="pbt"):
    """The controller that these options give for so many members."""
    config = Config(env="toy/identity", num_policies=num_members, pbt=pbt, controller=controller)
    return build_controller(config, table, seed)


def member(
    id_, objectives=(1.0,), *, frames=1000, episodes=None, generation=0, values=None, best=None, broken=False
):
    objectives = tuple(objectives)
    episodes = len(objectives) if episodes is None else episodes
    return MemberReport(id_, frames, objectives, episodes, generation, values or {}, best, broken)


def scored(scores):
    """Members 0, 1, ... with one objective each."""
    return [member(i, (s,)) for i, s in enumerate(scores)]


def report(frames, members):
    return PopulationReport(frames, tuple(members))

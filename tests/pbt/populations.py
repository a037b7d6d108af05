"""Small reports for the tests of the controller's parts."""

from pbt_rl.pbt.decisions import MemberReport, PopulationReport


def member(id_, objectives=(1.0,), *, frames=1000, episodes=None, generation=0, values=None):
    objectives = tuple(objectives)
    episodes = len(objectives) if episodes is None else episodes
    return MemberReport(id_, frames, objectives, episodes, generation, values or {})


def scored(scores):
    """Members 0, 1, ... with one objective each."""
    return [member(i, (s,)) for i, s in enumerate(scores)]


def report(frames, members):
    return PopulationReport(frames, tuple(members))

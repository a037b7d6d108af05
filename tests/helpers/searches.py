"""Small searches and what they answered, for the tests of the searches."""

from pbt_rl.controllers.decisions import Continue, Stop
from pbt_rl.controllers.hypers import HyperSpec
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.controllers.search.search import RandomSearch, draw_grid
from tests.helpers.populations import member, report

TABLE = {
    "learning_rate": HyperSpec("learning_rate", 1e-3, 1e-5, 1e-2, "log", tuned=True),
    "gamma": HyperSpec("gamma", 0.99, 0.9, 0.999, "one_minus", tuned=False),
}


def begun(controller, members):
    """Show the first report; every member must be answered."""
    controller.initial(members)
    first = controller.observe(report(0, [member(i, (), frames=0) for i in range(members)]))
    assert [d.member for d in first] == list(range(members))
    return first


def at(frames, scores):
    """Report of members {id: score} that all have so many frames."""
    return report(frames, [member(i, (s,), frames=frames, episodes=9) for i, s in scores.items()])


def going_on(decisions):
    return {d.member: d.until_frames for d in decisions if isinstance(d, Continue)}


def stopped(decisions):
    return {d.member for d in decisions if isinstance(d, Stop)}


def any_speed(member, frames, values, rng):
    return rng.uniform(70, 130)


def any_score(member, frames, values, rng):
    return rng.random()


def controllers(seed=0, phase_frames=100):
    return {
        "hypertrick": HyperTrick(TABLE, seed, phase_frames=phase_frames, phases=4),
        "dynamic": SuccessiveHalving(TABLE, seed, phase_frames=phase_frames, phases=4),
        "static": SuccessiveHalving(TABLE, seed, phase_frames=phase_frames, phases=4, slots=3),
        "hyperband": Hyperband(TABLE, seed, phase_frames=phase_frames, resource=9),
        "asha": Asha(TABLE, seed, phase_frames=phase_frames, resource=9, slots=3),
        "random": RandomSearch(TABLE, seed, phase_frames=4 * phase_frames),
        "grid": RandomSearch(TABLE, seed, phase_frames=4 * phase_frames, sampling=draw_grid),
    }


NAMES = list(controllers())

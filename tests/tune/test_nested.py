"""Values come back in the form of their table."""

from pbt_rl.controllers.hypers import HyperSpec, choice_spec
from pbt_rl.tune.space import decode


def number(name, default, scale="linear"):
    return HyperSpec(name, default, 0.0, 99.0, scale, tuned=True)


def by_name(*specs):
    return {spec.name: spec for spec in specs}


def test_dots_are_nesting_and_numbers_tuples():
    table = by_name(
        number("betas.0", 0.5),
        number("betas.1", 0.25),
        number("net.width", 4.0, "integer"),
        choice_spec("net.act", ("relu", "tanh", None), None),
        choice_spec("on", (False, True), False),
        number("one.0", 1.0),
    )
    values = {name: spec.default for name, spec in table.items()}
    net = {"width": 4, "act": None}
    assert decode(table, values) == {"betas": (0.5, 0.25), "net": net, "on": False, "one": (1.0,)}
    assert decode(table, {"on": 1.0, "net.act": 0.0}) == {"on": True, "net": {"act": "relu"}}
    table = by_name(*(number(f"x.{i}", float(i)) for i in range(12)))
    assert decode(table, {n: s.default for n, s in reversed(table.items())})["x"] == tuple(range(12))

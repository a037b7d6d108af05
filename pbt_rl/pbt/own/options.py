"""Options of rules of the user's own, and of settings that have no option, beside those of PBT."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from pbt_rl.options import names_module, names_object, option


@dataclass(frozen=True)
class OwnOptions:
    """What the user adds to the rules."""

    custom_explore: str = option(
        "",
        test=lambda text: text == "" or names_object(text),
        remedy="module:function",
        leads_out=names_module,
    )
    """Your own function as module:function, called last with the values (name -> number) and a random.Random; it
    returns the new values."""
    exploit_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for a setting of the exploit rule, such as sigmas=0.4 (sigma-gap). May be repeated. A value
    that is not JSON is a string; a wrong name lists the settings of the rule."""
    explore_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=VALUE for a setting of the explore rule, such as window=100 (pb2). May be repeated."""

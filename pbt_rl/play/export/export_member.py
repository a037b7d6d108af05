"""Export of a trained member for other programs (`pbt-rl export RUN --format onnx`)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pbt_rl.controllers.lineage import Lineage
from pbt_rl.errors import ConfigError
from pbt_rl.play.export.card import Card, played
from pbt_rl.play.export.formats import FORMATS, SUFFIXES
from pbt_rl.play.export.net import exported_policy
from pbt_rl.play.export.rsl_rl import write_rsl_rl
from pbt_rl.play.member import Policy, evaluation_spec, load_pack, play_episodes, say, warn_of_mistakes
from pbt_rl.record.journal import journal_events
from pbt_rl.record.saved import SavedPolicy, Source, saved_to_play

CARD = "README.md"


def export_member(
    source: Source,
    form: str,
    out: Path | None = None,
    *,
    episodes: int = 10,
    seed: int = 0,
    trust: bool = False,
) -> list[Path]:
    """Write a member and a model card to files. Return the paths of all files.

    Raises ConfigError or EnvSetupError if the user must fix the cause.
    form: format of the file, a key of SUFFIXES. out: folder, by default `export/policy_NN` in the run.
    episodes: number of evaluation episodes for the score on the card. 0: the card has no score.
    trust: True to import modules that a run of another user, or a copied or moved run, names.
    """
    config, saved = saved_to_play(source, say, trust=trust)
    spec, options = evaluation_spec(config)
    warn_of_mistakes(spec)
    pack = load_pack(config, spec, saved, seed)
    policy = exported_policy(config, spec, pack)
    folder = out or source.run / "export" / f"policy_{saved.member:02d}"
    path = folder / f"policy{SUFFIXES[form]}"
    _, header = saved.checkpoint.tensors(saved.member)
    lineage = _lineage(saved)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [path]
        if form == "rsl_rl":
            known = lineage is not None and (header.member, header.generation) in lineage
            line = lineage.line((header.member, header.generation)) if lineage is not None and known else []
            paths = write_rsl_rl(policy, path, config, header, line)
        else:
            FORMATS[form](policy, path)
        player, scores = Policy(pack, spec, config.model, seed, greedy=False), []
        if episodes:
            with contextlib.chdir("."):  # an environment may change the working directory
                scores = [one.objective for one in play_episodes(player, options, episodes, seed)]
        there = [name for name, suffix in SUFFIXES.items() if (folder / f"policy{suffix}").exists()]
        text = played(config.env, options)
        card = Card(config, saved, header, policy, there, scores, text, lineage)
        (folder / CARD).write_text(card.text(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    return [*paths, folder / CARD]


def _lineage(saved: SavedPolicy) -> Lineage | None:
    """Return the lineages of all members of a run. None if the journal is missing or damaged."""
    try:
        return Lineage.from_events(journal_events(saved.run))
    except (OSError, ValueError) as error:
        say(f"the model card has no lineage: {error}")
        return None

"""Lines of decisions on the screen have the scores that the rule compared."""

import re

from pbt_rl.config.command import parse_train
from pbt_rl.run.train import train

WORDS = (
    "--env gym/CartPole-v1 --num-policies 4 --train-for-frames 12000 --seed 3 --mode serial --no-figures "
    "--pbt.start-frames 2000 --pbt.period-frames 1500 --pbt.replace-errors 0 --pbt.replace-gap 0 --name x"
)


def test_a_replacement_shows_the_scores_of_its_reason(tmp_path, capsys):
    assert train(parse_train([*WORDS.split(), "--out", str(tmp_path)])) == 0
    shown = re.findall(r"^\d+ <- \d+ +(\S+) -> (\S+)", capsys.readouterr().out, re.MULTILINE)
    reasons = re.findall(
        r"objective (\S+) .*?\d+ % .*?([\d.]+\d); mutated", (tmp_path / "x" / "journal.jsonl").read_text()
    )
    assert shown
    for line, reason in zip(shown, reasons, strict=True):
        assert [float(x) for x in line] == [float(f"{float(x):.4g}") for x in reason]

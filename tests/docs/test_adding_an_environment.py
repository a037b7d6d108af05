"""The pages on an environment of one's own run as they are printed, on less; that of all families is complete."""

import json
import re
import shlex

import pytest

from pbt_rl.envs import lookup
from tests.helpers.runs import ROOT, start

DOCS = ROOT / "docs"
PAGE = "".join(
    (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("your-environment", "reference/environment-interface", "reference/several-agents")
)
FRAMES = 24_000


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
def test_the_page_leads_from_nothing_to_a_population_that_tunes_its_reward(tmp_path):
    files = {re.match(r"# (\w+\.py)\n", block)[1]: block for block in blocks("python")}
    assert list(files) == ["orchard.py", "taxi.py", "orchard_rows.py", "pennies.py"]
    assert len([line for line in files["orchard.py"].splitlines() if line]) <= 45
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    commands = [shlex.split(block.replace("\\\n", " ")) for block in blocks("bash")]
    assert [command[1] for command in commands] == [
        *("envs", "train", "eval"),
        *["envs"] * 4,
        "train",
        "eval",
    ]
    smaller = {"--train-for-frames": FRAMES, "--pbt.start-frames": 500, "--pbt.period-frames": 500}
    for command in commands:
        for option, value in smaller.items():
            if option in command:
                command[command.index(option) + 1] = str(value)
        run = start(tmp_path, *command[1:], *["--no-figures"] * (command[1] == "train"))
        assert run.wait() == 0, f"{command}:\n{run.out}\n{run.err}"
        assert all("of your own run" in line for line in run.err.splitlines())
        if command[1] == "envs":
            assert "MISTAKE" not in run.out
            facts = {"taxi:make_env": "action mask", "pennies:Pennies": "pennies:Pennies, 2 agents"}
            shaped = re.search(r"change with shaping: +apple$", run.out, re.MULTILINE)
            assert facts[command[3]] in run.out if command[3] in facts else shaped
    journal = (tmp_path / "runs" / "orchard" / "journal.jsonl").read_text().splitlines()
    edits = [event for event in map(json.loads, journal) if event["event"] == "applied"]
    assert edits, "the population was edited"
    apples = {
        json.loads(path.read_text())["shaping"]["apple"]
        for path in tmp_path.glob("runs/orchard/policy_*.json")
    }
    assert len(apples) > 1


FAMILIES_PAGE = (DOCS / "reference" / "environments.md").read_text(encoding="utf-8")


def test_the_page_of_families_names_every_one():
    for family in lookup.FAMILIES:
        (link,) = re.findall(rf"\[`{family}/`\]\(([^)]+)\)", FAMILIES_PAGE)
        page, _, heading = link.partition("#")
        text = (DOCS / "reference" / page).read_text(encoding="utf-8") if page else FAMILIES_PAGE
        assert f"\n## {heading.replace('-', ' ')}\n" in text.lower() if heading else text

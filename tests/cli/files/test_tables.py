import pytest

from pbt_rl.cli.files import read_table
from pbt_rl.cli.python import make_config
from pbt_rl.errors import ConfigError


def table(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_the_forms_of_a_table(tmp_path):
    rows = ("learning_rate=1e-3,gamma=0.9", "", "gamma=1")
    csv = table(tmp_path, "a.csv", "member,learning_rate,gamma\n2,,1\n0,1e-3, 0.9\n")
    assert read_table(csv) == rows
    assert read_table(table(tmp_path, "b.csv", "learning_rate,gamma\n1e-3,0.9\n,\n,1\n")) == rows
    text = '[{"learning_rate": 1e-3, "gamma": 0.9}, {}, {"gamma": 1, "unroll": null}]'
    assert read_table(table(tmp_path, "c.json", text)) == ("learning_rate=0.001,gamma=0.9", "", "gamma=1")


def test_a_config_holds_the_values_and_not_the_file(tmp_path):
    path = table(tmp_path, "a.csv", "gamma\n0.9\n")
    config = make_config(env="toy/identity", pbt={"start_values": [str(path)]})
    assert config.pbt.start_values == ("gamma=0.9",)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "it has no rows"),
        ("a.csv", "gamma,unroll\n0.9\n", "more or fewer cells"),
        ("a.csv", "gamma\n0.9,1\n", "more or fewer cells"),
        ("a.csv", "member,gamma\n0,1\n0,1\n", "member 0 is in it twice"),
        ("a.csv", "member,gamma\nx,1\n", "member 'x' is no id"),
        ("a.csv", 'gamma\n"0.9"1\n', "it is no table"),
        ("a.csv", "member,gamma\n100000,1\n", "member '100000' is no id"),
        ("a.csv", f"member,gamma\n{'9' * 5000},1\n", "is no id"),
        ("a.json", "{}", "a list with an object for each member"),
        ("a.json", "[1", "it is no table"),
        ("a.txt", "x", "give FILE.csv, FILE.json"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, name, text, said):
    path = table(tmp_path, name, text)
    with pytest.raises(ConfigError, match=f"--pbt.start-values {path} cannot be used: .*{said}"):
        read_table(path)

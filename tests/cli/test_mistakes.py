"""What people mistype, in every command: each gets one clear line and exit code 2, and leaves nothing behind."""

import shlex
import shutil
import sys

import pytest

from pbt_rl.cli import EXIT_USER_ERROR, main
from pbt_rl.record.lock import FolderLock

pytestmark = pytest.mark.long

FILES = {
    "runs/torn/config.json": "{",
    "runs/torn/journal.jsonl": "noise\nmore\n",
    "runs/diary/diary.txt": "today",
    "a_file": "",
    "bad.toml": "env = \n",
    "bad.json": "[1]",
    "bad.yaml": "a: [\n",
    "unknown.toml": 'env="toy/identity"\nnum_polices=3\n',
    "type.toml": 'env="toy/identity"\nnum_policies="many"\n',
    "c.ini": "x",
    "nested.json": '{"env": "toy/identity", "pbt": 3}',
    "binary.toml": "\0\0",
    "unknown.csv": "learning_rat\n1e-3\n",
    "text.csv": "learning_rate\nhigh\n1\n1\n1\n",
    "empty.csv": "",
    "range.csv": "learning_rate\n5\n1\n1\n1\n",
    "ragged.csv": "learning_rate,gamma\n1e-3\n1e-3,0.9,3\n",
    "envfile.py": "def nothing():\n    return None\n\ndef needs(x):\n    return None\n\nvalue = 3\n",
    "net.py": "def wrong(a, b, c):\n    return None\n\ndef none(shapes):\n    return None\n",
    "tracker.py": "class T:\n    pass\n",
}
"""Of the folder in which all is typed; `runs/good` is a run besides, `runs/unsaved` one without checkpoints."""
GOOD = (
    "train --env toy/identity --mode serial --name good --num-policies 2 --train-for-frames 300 --actors 1 "
    "--devices cpu --no-figures"
)
MISTAKES = {
    "train --env CartPole": "'CartPole' names no environment: write gym/CartPole-v0 or gym/CartPole-v1.",
    "train --env ALE/Pongg-v5": "'ALE/Pongg-v5' names no environment: did you mean atari/pong? `pbt-rl",
    "train --env atari/": "'atari/' names no environment: did you mean atari/NAME? `pbt-rl envs`",
    "train --env gym/": "'gym/' names no environment: did you mean gym/NAME? `pbt-rl envs` lists",
    "train --env ''": "--env is missing: give it as family/name, such as atari/pong, or",
    "train --env /": "'/' names no environment: write atari/NAME, gym/NAME, toy/NAME,",
    "train --env 'gym/CartPole v1'": (
        "gym/CartPole v1 cannot be made: Malformed environment ID: CartPole v1."
    ),
    "train --env toy/identity?length=abc": (
        "toy/identity?length=abc: 'length=abc' is not a parameter with a number"
    ),
    "train --env toy/identity?foo=3": (
        "toy/identity?foo=3: 'foo=3' is not a parameter with a number above 0; it"
    ),
    "train --env toy/": "'toy/' names no environment: did you mean toy/NAME? `pbt-rl envs` lists",
    "train --env my/file.py:Env": "'my/file.py:Env' names no environment: write my.file:Env, as Python",
    "train --env nomodule:make": "nomodule:make cannot be found: there is no module 'nomodule' in the",
    "train --env envfile:nothing": (
        "envfile:nothing returned builtins.NoneType, not an environment: return a"
    ),
    "train --env envfile:needs": ("envfile:needs cannot be called so: missing a required argument: 'x'; its"),
    "train --env envfile:value": "envfile:value is int, not a function: name a function or class that",
    "train --env envfile:nothin": "envfile:nothin cannot be found: envfile has no 'nothin'; did you mean",
    "train --env envfile:": "envfile: cannot be found: envfile has no ''; it has nothing, needs",
    "train --env :make": ":make cannot be found: write module:factory, such as module:make_env",
    "train --env a:b:c": "a:b:c cannot be found: there is no module 'a' in the working directory",
    "train --env envfile": "'envfile' names no environment: write envfile:make_env, as Python imports",
    "train --env toy/identity --env-option novalue": (
        "--env-option novalue cannot be used: write key=value, key as in Python"
    ),
    "train --env toy/identity --env-option length=3": (
        "--env-option length=... cannot be used: it is for gym/, dmlab2d/,"
    ),
    "train --env gym/CartPole-v1 --env-option foo=1": (
        "gym/CartPole-v1 cannot be made: CartPoleEnv.__init__() got an unexpected"
    ),
    "train --env toy/identity --num-policies 1.5": (
        "--num-policies 1.5 cannot be used: give a whole number, such as 5000000,"
    ),
    "train --env toy/identity --num-policies -3": "--num-policies -3 cannot be used: give 1 to 100000",
    "train --env toy/identity --num-policies 1e30": (
        "--num-policies 1e30 cannot be used: give a whole number of at most 18"
    ),
    "train --env toy/identity --num-policies nan": (
        "--num-policies nan cannot be used: give a whole number, such as 5000000,"
    ),
    "train --env toy/identity --num-policies ''": (
        "--num-policies '' cannot be used: give a whole number, such as 5000000,"
    ),
    "train --env toy/identity --seed -1": "--seed -1 cannot be used: give 0 or more",
    "train --env toy/identity --seed 1e400": (
        "--seed 1e400 cannot be used: give a whole number, such as 5000000, 5e6 or"
    ),
    "train --env toy/identity --train-for-frames 0": "--train-for-frames 0 cannot be used: give 1 or more",
    "train --env toy/identity --train-for-frames 1x": (
        "--train-for-frames 1x cannot be used: give a whole number, such as"
    ),
    "train --env toy/identity --train-for-seconds -5": (
        "--train-for-seconds -5.0 cannot be used: give 0 (no limit) or more"
    ),
    "train --env toy/identity --train-for-seconds inf": (
        "--train-for-seconds inf cannot be used: give a finite number"
    ),
    "train --env toy/identity --train-for-seconds nan": (
        "--train-for-seconds nan cannot be used: give a finite number"
    ),
    "train --env toy/identity --actors -1": "--actors -1 cannot be used: give 0 (planned) or more",
    "train --env toy/identity --envs-per-unit -1": (
        "--envs-per-unit -1 cannot be used: give 0 (planned) or more"
    ),
    "train --env toy/identity --learner.batch 0": "--learner.batch 0 cannot be used: give 1 or more",
    "train --env toy/identity --learner.rollout 0": "--learner.rollout 0 cannot be used: give 1 or more",
    "train --env toy/identity --hypers.gamma 2": "--hypers.gamma 2.0 cannot be used: give 0 to 1",
    "train --env toy/identity --hypers.learning-rate -1": (
        "--hypers.learning-rate -1.0 cannot be used: give 0 to 1"
    ),
    "train --env toy/identity --hypers.learning-rate nan": (
        "--hypers.learning-rate nan cannot be used: give a finite number"
    ),
    "train --env toy/identity --devices ''": "--devices '' is not a device: use auto or a list of cpu",
    "train --env toy/identity --devices gpu": "--devices 'gpu' is not a device: use auto or a list of cpu",
    "train --env toy/identity --devices cpu,,cpu": (
        "--devices '' is not a device: use auto or a list of cpu"
    ),
    "train --env toy/identity --devices 3": "--devices '3' is not a device: use auto or a list of cpu",
    "train --env toy/identity --nodes foo": (
        "--nodes foo cannot be used: give `ray` for a cluster of this machine"
    ),
    "train --env toy/identity --mode fast": "--mode fast cannot be used: give async, sync or serial",
    "train --env toy/identity --algo ppo": (
        "--algo ppo cannot be used: give appo, a3c, fun, unreal or module:OBJECT"
    ),
    "train --env toy/identity --algo :x": "--algo :x cannot be used: algorithm ':x' cannot be loaded:",
    "train --env toy/identity --controller pbtt": (
        "--controller pbtt cannot be used: give pbt, mf-pbt, ipbt, schedule,"
    ),
    "train --env toy/identity --controller nowhere:C": (
        '--controller nowhere:C cannot be loaded: ModuleNotFoundError("No module'
    ),
    "train --env toy/identity --pbt.exploit trunk": (
        "--pbt.exploit trunk cannot be used: give top-middle-bottom, truncation,"
    ),
    "train --env toy/identity --pbt.explore x": (
        "--pbt.explore x cannot be used: give perturb, factors, multiply-or-divide,"
    ),
    "train --env toy/identity --pbt.ready x": (
        "--pbt.ready x cannot be used: give synchronous, asynchronous or"
    ),
    "train --env toy/identity --pbt.tune nothing": (
        "--pbt.tune nothing cannot be used: known names are adam_beta1, adam_beta2,"
    ),
    "train --env toy/identity --pbt.tune learning_rate=1": (
        "--pbt.tune learning_rate=1 cannot be used: give LOW:HIGH or"
    ),
    "train --env toy/identity --pbt.tune learning_rate=5:1": (
        "--pbt.tune learning_rate=5:1 cannot be used: give LOW:HIGH or"
    ),
    "train --env toy/identity --pbt.tune learning_rate=a:b": (
        "--pbt.tune learning_rate=a:b cannot be used: give LOW:HIGH or"
    ),
    "train --env toy/identity --pbt.tune gamma=0.5:2": (
        "--pbt.tune gamma=0.5:2 cannot be used: it must stay within 0..1"
    ),
    "train --env toy/identity --pbt.tune =": (
        "--pbt.tune = cannot be used: known names are adam_beta1, adam_beta2,"
    ),
    "train --env toy/identity --pbt.prior learning_rate": (
        "--pbt.prior learning_rate cannot be used: give LOW:HIGH, LOW:HIGH:SCALE or"
    ),
    "train --env toy/identity --pbt.prior learning_rat=1:2": (
        "--pbt.prior learning_rat=1:2 cannot be used: did you mean learning_rate?"
    ),
    "train --env toy/identity --pbt.prior learning_rate=1e-5:1e-2:sqrt": (
        "--pbt.prior learning_rate=1e-5:1e-2:sqrt cannot be used: the scale sqrt is"
    ),
    "train --env toy/identity --pbt.period-frames 0": "--pbt.period-frames 0 cannot be used: give above 0",
    "train --env toy/identity --pbt.factors": (
        "--pbt.factors (none) cannot be used: give one or more numbers, each above 0"
    ),
    "train --env toy/identity --pbt.factors 0": (
        "--pbt.factors 0.0 cannot be used: give one or more numbers, each above 0"
    ),
    "train --env toy/identity --pbt.exploit-option x=1": (
        "--pbt.exploit-option x=1 cannot be used: write NAME=VALUE; the rule's"
    ),
    "train --env toy/identity --pbt.start-values missing.csv": (
        "--pbt.start-values missing.csv cannot be used: No such file or directory;"
    ),
    "train --env toy/identity --pbt.start-values unknown.csv": (
        "--pbt.start-values learning_rat=1e-3 cannot be used: did you mean"
    ),
    "train --env toy/identity --pbt.start-values text.csv": (
        "--pbt.start-values learning_rate=high cannot be used: give a number"
    ),
    "train --env toy/identity --pbt.start-values empty.csv": (
        "--pbt.start-values empty.csv cannot be used: it has no rows"
    ),
    "train --env toy/identity --pbt.start-values range.csv": (
        "--pbt.start-values learning_rate=5 cannot be used: give 1e-06 to 0.01;"
    ),
    "train --env toy/identity --pbt.start-values ragged.csv": (
        "--pbt.start-values ragged.csv cannot be used: it is no table: a line has"
    ),
    "train --env toy/identity --pbt.start-values a_file": (
        "--pbt.start-values a_file cannot be used: it is no table: give FILE.csv,"
    ),
    "train --env toy/identity --pbt.start-values runs": (
        "--pbt.start-values runs cannot be used: it is no table: give FILE.csv,"
    ),
    "train --env toy/identity --model.encoder :Net": (
        "--model.encoder :Net cannot be used: give auto, nature, impala, a3c, mlp"
    ),
    "train --env toy/identity --model.encoder net:": (
        "--model.encoder net: cannot be used: give auto, nature, impala, a3c, mlp"
    ),
    "train --env toy/identity --model.encoder net:wrong": (
        "--model: encoder 'net:wrong' raised TypeError when it was made: wrong()"
    ),
    "train --env toy/identity --model.encoder net:none": (
        "--model: encoder 'net:none' gave NoneType: its factory must return a"
    ),
    "train --env toy/identity --model.encoder net:missing": (
        "--model: encoder 'net:missing' cannot be loaded: AttributeError(\"module"
    ),
    "train --env toy/identity --model.core lsmt": (
        "--model.core lsmt cannot be used: give none, gru, lstm or module:factory"
    ),
    "train --env toy/identity --model.core-layers 2": (
        "--model.core-layers 2 cannot be used: give --model.core gru or lstm"
    ),
    "train --env toy/identity --model.hidden 0": "--model.hidden 0 cannot be used: give 1 or more",
    "train --env toy/identity --learner.lr-schedule foo": (
        "--learner.lr-schedule foo cannot be used: give constant, linear or"
    ),
    "train --env toy/identity --recipe nope": (
        "--recipe nope cannot be used: the recipes are dmlab30-pbt, fun-atari"
    ),
    "train --config missing.toml": "--config missing.toml cannot be used: No such file or directory",
    "train --config bad.toml": ("--config bad.toml cannot be used: it is no TOML: Invalid value (at line 1,"),
    "train --config bad.json": "--config bad.json cannot be used: it holds no options; write NAME and",
    "train --config bad.yaml": ("--config bad.yaml cannot be used: it is no YAML: while parsing a flow node"),
    "train --config unknown.toml": (
        "--config unknown.toml cannot be used: num_polices is no option: did you"
    ),
    "train --config type.toml": "--config type.toml cannot be used: num_policies='many' cannot be used:",
    "train --config c.ini": "--config c.ini cannot be used: its name must end in .toml, .json, .yaml,",
    "train --config runs": "--config runs cannot be used: its name must end in .toml, .json, .yaml,",
    "train --config nested.json": "--config nested.json cannot be used: pbt=3 cannot be used: give its",
    "train --config binary.toml": (
        "--config binary.toml cannot be used: it is no TOML: Invalid statement (at"
    ),
    "train --config runs/torn/config.json": (
        "--config runs/torn/config.json cannot be used: it is no JSON: Expecting"
    ),
    "train --config": "--config needs a value",
    "train --env toy/identity --name 'a b'": (
        "--name a b cannot be used: give letters, digits, '.', '_' and '-'"
    ),
    "train --env toy/identity --name ''": (
        "--name '' cannot be used: give letters, digits, '.', '_' and '-'"
    ),
    "train --env toy/identity --name .hidden": (
        "--name .hidden cannot be used: give letters, digits, '.', '_' and '-'"
    ),
    "train --env toy/identity --name ü": "--name ü cannot be used: give letters, digits, '.', '_' and '-'",
    "train --env toy/identity --name a/b": (
        "--name a/b cannot be used: give letters, digits, '.', '_' and '-'"
    ),
    "train --env toy/identity --out a_file": "--out a_file cannot be written: Not a directory",
    "train --env toy/identity --out a_file/x": "--out a_file/x cannot be written: Not a directory",
    "train --env toy/identity --name diary": (
        "--name diary: runs/diary exists and is not a run (it has no config.json);"
    ),
    "train --env toy/identity --name torn": (
        "runs/torn/config.json cannot be read: Expecting property name enclosed in"
    ),
    "train --env toy/identity --name good --seed 5": (
        "runs/good was trained with other options: --num-policies: 2 there, 4 now;"
    ),
    "train --env toy/identity --init-from nowhere": (
        "--init-from nowhere cannot be used: write a member of a run as"
    ),
    "train --env toy/identity --init-from runs/good@5": (
        "runs/good/checkpoints has no checkpoint at 5 frames; there are: 512"
    ),
    "train --env toy/identity --init-from runs/good:9": (
        "member 9 is not in runs/good/checkpoints/at_512: there is no such member;"
    ),
    "train --env toy/identity --init-from runs/good:x": (
        "--init-from runs/good:x cannot be used: write a member of a run as"
    ),
    "train --env toy/identity --init-from runs/unsaved": "runs/unsaved has no weights: it was never saved",
    "train --env toy/identity --init-from no.safetensors": (
        "no.safetensors is not a file: give a safetensors file of a member"
    ),
    "train --env toy/identity --init-from runs/good --init-from runs/good": (
        "--init-from runs/good runs/good cannot be used: give one source for all,"
    ),
    "train --env toy/identity --init-parts foo": (
        "--init-parts foo cannot be used: give all, weights or weights+normalisers"
    ),
    "train --env toy/identity --init-from a_file": (
        "--init-from a_file cannot be used: write a member of a run as"
    ),
    "train --env toy/identity --track tensorboard": (
        "--track tensorboard cannot be used: give csv, wandb, mlflow or"
    ),
    "train --env toy/identity --track csv --track csv": (
        "--track csv csv cannot be used: give csv, wandb, mlflow or module:Class,"
    ),
    "train --env toy/identity --track tracker:": (
        "--track tracker: cannot be used: give csv, wandb, mlflow or module:Class,"
    ),
    "train --env toy/identity --track nowhere:T": (
        '--track nowhere:T cannot be loaded: ModuleNotFoundError("No module named'
    ),
    "train --env toy/identity --track tracker:T": (
        "--track tracker:T is no tracker: a class with show(view) and close(ended)"
    ),
    "train --env toy/identity --save-every-frames -1": (
        "--save-every-frames -1 cannot be used: give 0 (never) or more"
    ),
    "train --env toy/identity --keep-checkpoints 0": "--keep-checkpoints 0 cannot be used: give 1 or more",
    "train --env toy/identity --slots -1": "--slots -1 cannot be used: give 0 (all) or more",
    "train --env toy/identity --slot-frames 0": "--slot-frames 0 cannot be used: give 1 or more",
    "train --env toy/identity --final-episodes -1": (
        "--final-episodes -1 cannot be used: give 0 (none) or more"
    ),
    "train --env toy/identity --evaluate-every-frames -1": (
        "--evaluate-every-frames -1 cannot be used: give 0 (never) or more"
    ),
    "train --env toy/identity --evaluate-every-frames often": (
        "--evaluate-every-frames often cannot be used: give a whole number, such as"
    ),
    "train --env toy/identity --evaluate-video": (
        "--evaluate-video true cannot be used: it films the games of"
    ),
    "train --env toy/identity --evaluate-every 5": (
        "--evaluate-every is no option: write --evaluate-every-frames; it counts"
    ),
    "train --env toy/identity --evaluate-every-frames 5 --evaluate-video": (
        "--evaluate-video true cannot be used: toy/identity has no pictures: leave"
    ),
    "train --env toy/identity --controller schedule": (
        "--schedule.run '' cannot be used: give the folder of a recorded run"
    ),
    "train --env toy/identity --controller schedule --schedule.run nowhere": (
        "--schedule.run nowhere cannot be used: nowhere is not the folder of a run:"
    ),
    "train --env toy/identity --controller hyperband --search.eta 1": (
        "--search.eta 1 cannot be used: give 2 or more"
    ),
    "train --env toy/identity --show --format xml": (
        "--format xml cannot be used: give text, toml, yaml or json"
    ),
    "train --env toy/identity --resume maybe": "--resume maybe cannot be used: give true or false",
    "train --env toy/identity --figures perhaps": "--figures perhaps cannot be used: give true or false",
    "train toy/identity": "'toy/identity' belongs to no option; pbt-rl train --help",
    "train --env toy/identity extra": "'extra' belongs to no option; pbt-rl train --help",
    "train --env toy/identity --": "-- is no option; pbt-rl train --help-all lists them",
    "train --env": "--env needs a value",
    "train --env toy/identity --matchup.objective elo": (
        "--matchup.objective elo cannot be used: toy/identity has one agent,"
    ),
    "eval": "RUN is missing: pbt-rl eval RUN; pbt-rl eval --help",
    "eval nowhere": "nowhere is not the folder of a run: it has no config.json",
    "eval a_file": "a_file is not the folder of a run: it has no config.json",
    "eval runs/good --member 9": (
        "member 9 is not in runs/good/checkpoints/at_512: there is no such member;"
    ),
    "eval runs/good --member x": "--member 'x' cannot be used: write best or the id of a member",
    "eval runs/good --member -1": "--member '-1' cannot be used: write best or the id of a member",
    "eval runs/good --at 5": "runs/good/checkpoints has no checkpoint at 5 frames; there are: 512",
    "eval runs/good --at x": "--at x cannot be used: give a whole number, such as 5000000, 5e6 or 5M",
    "eval runs/good --episodes 0": "--episodes 0 cannot be used: give 1 or more",
    "eval runs/good --episodes x": (
        "--episodes x cannot be used: give a whole number, such as 5000000, 5e6 or"
    ),
    "eval runs/good --seed -1": "--seed -1 cannot be used: give 0 or more",
    "eval runs/good --video f.avi": "--video f.avi: write a name that ends in .mp4 or .gif",
    "eval runs/good --video nodir/f.mp4": (
        "--video nodir/f.mp4 cannot be written: the folder nodir is not there"
    ),
    "eval runs/good --against nowhere": (
        "--against nowhere cannot be used: toy/identity has one agent, and no"
    ),
    "eval runs/good --against random": (
        "--against random cannot be used: toy/identity has one agent, and no"
    ),
    "eval runs/good --against random --video f.gif": (
        "--video f.gif cannot be used: leave it out with --against"
    ),
    "eval runs/torn": "runs/torn/config.json cannot be read: Expecting property name enclosed in",
    "eval runs/unsaved": "runs/unsaved has no weights: it was never saved",
    "eval runs/diary": "runs/diary is not the folder of a run: it has no config.json",
    "eval runs/good extra": "'extra' belongs to no option; pbt-rl eval --help",
    "eval runs/good --epsiodes 3": "--epsiodes is no option: did you mean --episodes?",
    "report": "RUNS is missing: pbt-rl report RUNS; pbt-rl report --help",
    "report nowhere": "nowhere is not the folder of a run: it has no journal.jsonl",
    "report a_file": "a_file is not the folder of a run: it has no journal.jsonl",
    "report runs/torn": "runs/torn is not the folder of a run: runs/torn/journal.jsonl, line 1, is",
    "report runs/unsaved": "runs/unsaved is not the folder of a run: it has no journal.jsonl",
    "report runs/good --out a_file": "--out a_file cannot be written: File exists",
    "report runs/good nowhere": "nowhere is not the folder of a run: it has no journal.jsonl",
    "report runs/good --ouy x": "--ouy is no option; pbt-rl report --help lists them",
    "watch": "RUN is missing: pbt-rl watch RUN; pbt-rl watch --help",
    "watch nowhere": "nowhere is not the folder of a run: it has no journal.jsonl",
    "watch runs/torn": "runs/torn/journal.jsonl cannot be read: Expecting value: line 1 column 1",
    "watch runs/good --port 99999": "--port 99999 cannot be used: give 0 to 65535",
    "watch runs/good --port -1": "--port -1 cannot be used: give 0 to 65535",
    "watch runs/good --port abc": (
        "--port abc cannot be used: give a whole number, such as 5000000, 5e6 or 5M"
    ),
    "export": "RUN is missing: pbt-rl export RUN; pbt-rl export --help",
    "export nowhere": "nowhere is not the folder of a run: it has no config.json",
    "export runs/good --format pt": (
        "--format pt cannot be used: give onnx, torchscript, safetensors or optuna"
    ),
    "export runs/good --format optuna --member 0": (
        "--format optuna cannot be used: it has the trials of the whole run: leave out --member"
    ),
    "export runs/good --format optuna --episodes 5 --seed 2": (
        "--format optuna cannot be used: it has the trials of the whole run: leave out --episodes, --seed"
    ),
    "export runs/good --episodes -1": "--episodes -1 cannot be used: give 0 (none) or more",
    "export runs/good --out a_file": "a_file cannot be written: File exists",
    "export runs/unsaved": "runs/unsaved has no weights: it was never saved",
    "runs a_file": "a_file cannot be listed: Not a directory",
    "runs a b": "'b' belongs to no option; pbt-rl runs --help",
    "set nowhere x=1": "nowhere is not the folder of a run: it has no config.json",
    "set runs/good": "nothing to change is given: pbt-rl set runs/good NAME=VALUE; pbt-rl set",
    "set runs/good nope=1": "--nope is no option; pbt-rl set --help lists them",
    "set runs/good train-for-frames=x": (
        "--train-for-frames x cannot be used: give a whole number, such as 5000000,"
    ),
    "set runs/good learning_rate=x": "learning_rate=x cannot be used: give a number",
    "set runs/good train-for-frames=5M": (
        "runs/good is not training now: give the options to `pbt-rl resume"
    ),
    "set runs/good learning_rate=1e-4 --member x": ("--member x cannot be used: give the number of a member"),
    "set runs/good train-for-frames": (
        "'train-for-frames' cannot be used: write NAME=VALUE; pbt-rl set --help"
    ),
    "set runs/good learning_rate=1e-4": "runs/good is not training now: values of members can be set only",
    "train --resume runs/good": "--resume takes true or false here; what goes on with a run is: pbt-rl resume",
    "set runs/good seed=3": "runs/good is not training now: give the options to `pbt-rl resume",
    "sweep --env toy/identity": (
        "--name cannot be used: name the sweep by letters, digits, '.', '_' and '-'"
    ),
    "sweep --name s": "--env is missing: give it as family/name, such as atari/pong, or",
    "sweep --name s --env toy/identity --seeds a": (
        "--seeds a cannot be used: give whole numbers, such as 0 1 2, or 0-4"
    ),
    "sweep --name s --env toy/identity --seeds 5-1": (
        "--seeds 5-1 cannot be used: give a range such as 0-4, of at most 10,000"
    ),
    "sweep --name s --env toy/identity --grid x": (
        "--grid x cannot be used: write OPTION=A,B,C, such as hypers.gamma=0.9,0.99"
    ),
    "sweep --name s --env toy/identity --grid nope=1,2": (
        "--nope is no option; pbt-rl train --help-all lists them"
    ),
    "sweep --name s --env toy/identity --jobs 0": "--jobs 0 cannot be used: give 1 to 1000",
    "sweep --name 'a b' --env toy/identity": (
        "--name a b cannot be used: name the sweep by letters, digits, '.', '_' and"
    ),
    "audit": "RUN is missing: pbt-rl audit RUN; pbt-rl audit --help",
    "audit nowhere": "nowhere is not the folder of a run: it has no journal.jsonl",
    "audit runs/torn": "runs/torn is not the folder of a run: runs/torn/journal.jsonl, line 1, is",
    "audit runs/unsaved": "runs/unsaved is not the folder of a run: it has no journal.jsonl",
    "resume nowhere": "nowhere is not the folder of a run: it has no config.json",
    "resume runs/torn": "runs/torn/config.json cannot be read: Expecting property name enclosed in",
    "resume runs/good --seed 3": (
        "runs/good was trained with other options: --seed: 0 there, 3 now. Give the"
    ),
    "resume runs/good --env toy/memory": (
        "runs/good was trained with other options: --env: toy/identity there,"
    ),
    "resume --seed 3": "the folder of a run comes first, not --seed: pbt-rl resume RUN [OPTIONS]",
    "resume runs/good --train-for-framse 5": (
        "--train-for-framse is no option: did you mean --train-for-frames?"
    ),
    "envs foo": "pbt-rl envs takes nothing or `check ENV`, not 'foo'",
    "envs check": "ENV is missing: pbt-rl envs check ENV; pbt-rl envs check --help",
    "envs check nowhere:x": "nowhere:x cannot be found: there is no module 'nowhere' in the working",
    "envs check toy/identity --steps 0": "--steps 0 cannot be used: give 1 or more",
    "envs check envfile:nothing": (
        "envfile:nothing returned builtins.NoneType, not an environment: return a"
    ),
    "dmlab-cache --jobs -1": "--jobs -1 cannot be used: give 0 (one per core) or more",
    "dmlab-cache --levels": "--levels (none) cannot be used: give one or more, such as dmlab30",
}
"""What is typed -> how the answer begins."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "argv", ["pbt-rl", *shlex.split(GOOD)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0
    nothing_saved = shutil.ignore_patterns("checkpoints", "journal.jsonl", ".lock")
    shutil.copytree(path / "runs" / "good", path / "runs" / "unsaved", ignore=nothing_saved)
    return path


@pytest.fixture
def typed(folder, monkeypatch, capsys):
    """Type a command in the folder: exit code, output, errors, and what was left."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def files():
        found = (
            p for p in folder.rglob("*") if p.name not in (".lock", "__pycache__") and p.suffix != ".pyc"
        )
        return sorted((p, p.is_file() and p.read_bytes()) for p in found)

    def call(text):
        before = files()
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *shlex.split(text)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err, [one for one in files() if one not in before]

    return call


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gets_one_clear_line_and_leaves_nothing(typed, text):
    code, out, err, left = typed(text)
    assert err.startswith(f"pbt-rl: {MISTAKES[text]}")
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])


@pytest.mark.parametrize(
    ("command", "said"),
    {
        "train --env toy/identity --out {}": "--out {} cannot be written: File name too long",
        "train --env toy/identity --name {}": "--out runs cannot be written: File name too long",
        "train --env toy/identity --resume {}": "--resume {} cannot be used",
        "train --env toy/identity --init-from {}": "--init-from {} cannot be used: write a member of a run",
        "train --env toy/identity --init-from {}.safetensors": "{}.safetensors is not a file: give a",
        "resume {}": "{}/config.json cannot be read: File name too long",
        "eval {}": "{}/config.json cannot be read: File name too long",
        "report {}": "{} is not the folder of a run: File name too long",
        "runs {}": "{} cannot be listed: File name too long",
    }.items(),
)
def test_a_path_that_no_file_can_have_is_one_clear_error(typed, command, said):
    code, out, err, left = typed(command.format("a" * 300))
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
    assert err.startswith(f"pbt-rl: {said.format('a' * 300)}")


@pytest.mark.parametrize("command", ["resume runs/good", "train --config runs/good/config.json --out runs"])
def test_a_run_that_another_process_writes_is_left_alone(typed, folder, command):
    lock = FolderLock(folder / "runs" / "good")
    try:
        code, _, err, left = typed(command)
    finally:
        lock.release()
    assert (code, err.count("\n"), left) == (EXIT_USER_ERROR, 1, [])
    assert "process" in err


def test_a_folder_that_may_not_be_written_is_named(typed):
    code, out, err, left = typed(
        "train --env toy/identity --out /proc/closed"
    )  # root may write everywhere else
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
    assert "--out /proc/closed cannot be written: " in err

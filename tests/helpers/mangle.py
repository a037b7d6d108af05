"""Ways of damaging a file: what a careless editor, a broken disk or an enemy may do to it."""

import copy
import json
import os

NASTY = (
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    2**31,
    10**18,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "nan",
    "inf",
    "1e999",
    "best",
    "0",
    "$\\frac$",
    "\ud800",
    "\x1b[2J",
    "\0",
    "a" * 100_000,
    "../../../etc",
    "mine:make",
    "phase 99999999999999999999",
    [],
    {},
    [None],
    [1, 2, 3],
    {"a": {"b": []}},
    ["x=[" * 9],
    ["x=" + "[" * 100_000],
)


def mangled(content, rng):
    """Damage the bytes of a JSON file, or of one of JSON lines. Deterministic under the generator."""
    return rng.choice(WAYS)(content, rng)


def edited(content, rng):
    """Change one to three places of the objects in the file."""
    lines = content.splitlines() if b"\n{" in content.rstrip() else [content]
    if not lines:
        return b""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        try:
            tree = json.loads(lines[at])
        except (ValueError, RecursionError):
            continue
        lines[at] = json.dumps(edit(tree, rng)).encode()
    return b"\n".join(lines) + b"\n"


def edit(tree, rng):
    """Replace, remove, add, copy or repeat something at a random place."""
    tree = copy.deepcopy(tree)
    places = [(tree, key) for key in keys(tree)]
    for holder, key in places:
        places += [(holder[key], inner) for inner in keys(holder[key])]
        if len(places) > 5000:
            break
    if not places:
        return rng.choice(NASTY)
    holder, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, there = rng.choice(places)
        holder[key] = copy.deepcopy(other[there]) if there in keys(other) else None
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(["x", "a" * 1000, "\ud800", "$x$", "event", *holder])] = rng.choice(NASTY)
    elif kind == 2:
        holder.insert(key, rng.choice([*NASTY, copy.deepcopy(holder[key])]))
    elif kind == 3 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = holder[key] * rng.choice([-1, 2, 0.5, 10, 10**6]) + rng.choice([0, 1, -1])
    else:
        holder[key] = rng.choice(NASTY)
    return tree


def keys(tree):
    if isinstance(tree, dict):
        return list(tree)
    return list(range(len(tree))) if isinstance(tree, list) else []


def truncated(content, rng):
    return content[: rng.randrange(len(content) + 1)]


def flipped(content, rng):
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 2, 50])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def reordered(content, rng):
    """Remove, repeat and swap lines."""
    lines = content.splitlines()
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(3)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(other, lines[at])
        else:
            lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines) + b"\n"


def nested(content, rng):
    deep = b"[" * 100_000 if rng.random() < 0.5 else b'{"a":' * 900 + b"1" + b"}" * 900
    at = content.find(b":", rng.randrange(len(content))) + 1
    end = content.find(b",", at)
    return content[:at] + deep + content[end:]


def foreign(content, rng):
    return rng.choice(
        [b"", b"\n", b"\0" * 1000, b"\xff\xfe{}", b"PK\3\4", rng.randbytes(500), b"[1, 2]", b"null"]
    )


WAYS = (edited, edited, edited, edited, edited, edited, truncated, flipped, reordered, nested, foreign)


def replaced_by_no_file(path, rng):
    """Put something else in the place of a file: a folder, a pipe, a link to itself or to nowhere or to a device."""
    path.unlink()
    kind = rng.randrange(6)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(path.name)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    elif kind == 4:
        path.symlink_to("nowhere/" * 20)
    else:
        path.touch(mode=0)

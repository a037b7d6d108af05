"""Every name and parameter of torch's GPU interface that is in use, against torch's own source and stub files.

No GPU is needed for that, so a torch without a name is found before a GPU runs it. Only what the installed torch says
is compared; `REGISTERED` and `ONE_RANDOM_STATE` (recording.py) know of other versions.
"""

import ast
from pathlib import Path

import pytest
import torch

from tests.helpers.runs import ROOT

recording = pytest.importorskip("pbt_rl.learner.cuda.recording")
TORCH = Path(torch.__file__).parent
MODULES = {
    "torch.cuda": "cuda/__init__.py",
    "torch.cuda.memory": "cuda/host_memory.py",
    "torch._C": "_C/__init__.pyi",
    "torch.backends.cudnn": "backends/cudnn/__init__.py",
    "torch.cpu": "cpu/__init__.py",
}
METHODS = {
    "CUDAGraph": ("register_generator_state", "pool", "replay"),
    "Event": ("record", "synchronize", "elapsed_time", "query"),
    "Stream": ("wait_event", "wait_stream", "synchronize"),
    "Generator": ("clone_state", "graphsafe_set_state", "manual_seed", "get_state", "set_state"),
    "graph": (),
}
USERS = [*(ROOT / "algos").rglob("*.py"), *(ROOT / "pbt_rl").rglob("*.py"), *ROOT.glob("scripts/**/gpu_*.py")]


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{dotted(node.func)}()"
    return node.id if isinstance(node, ast.Name) else "?"


def used(source: str) -> set[tuple[str, frozenset[str], int]]:
    """(name, keywords of the call, number of other arguments; -1 where it is not called)."""
    found, called = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called.add(node.func)
            found.add((dotted(node.func), frozenset(k.arg or "" for k in node.keywords), len(node.args)))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add((dotted(node), frozenset(), -1))
    return {one for one in found if one[0].rpartition(".")[0] in MODULES}


def names_of(path: Path) -> set[str]:
    """What a module of torch defines or passes on."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names |= names_of(path.parent / f"{node.module}.py")
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def definition(torch_folder: Path, module: str, name: str) -> ast.AST | None:
    """The function or class, also where a module only passes it on."""
    folder = (torch_folder / MODULES[module]).parent
    for path in (torch_folder / MODULES[module], *sorted(folder.glob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                return node
    return None


def parameters(node: ast.AST) -> tuple[set[str], int] | None:
    """(names, most positional ones) of a function, or of what makes a class; None: it takes anything."""
    if isinstance(node, ast.ClassDef):
        made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in ("__new__", "__init__")]
        if not made:
            return None
        names, most = parameters(made[0]) or (set(), 99)
        return names - {"self", "cls"}, most - 1
    arguments = node.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    if arguments.kwarg and arguments.vararg:
        return None
    return names, len(arguments.posonlyargs) + len(arguments.args) if arguments.vararg is None else 99


def complaints(source: str, torch_folder: Path = TORCH) -> list[str]:
    said = []
    for name, keywords, given in sorted(used(source), key=str):
        module, _, leaf = name.rpartition(".")
        if leaf not in names_of(torch_folder / MODULES[module]) and f"{module}.{leaf}" not in MODULES:
            said.append(f"{name} is not in torch")
            continue
        node = definition(torch_folder, module, leaf)
        known = None if node is None or given < 0 else parameters(node)
        if known is not None and (keywords - known[0] or given > known[1]):
            said.append(f"{name} takes {sorted(known[0])}, not {sorted(keywords)} and {given} more")
    return said


@pytest.mark.parametrize("path", [p for p in USERS if "torch.cuda" in p.read_text()], ids=lambda p: p.name)
def test_every_name_and_parameter_is_in_torch(path):
    assert not complaints(path.read_text())


def test_methods_of_streams_events_graphs_and_generators_are_in_torch():
    stub = (TORCH / "_C/__init__.pyi").read_text()
    product = "".join(path.read_text() for path in USERS)
    sources = stub + "".join(path.read_text() for path in (TORCH / "cuda").glob("*.py"))
    for kind, methods in METHODS.items():
        assert f"class {kind}" in sources, kind
        for method in methods:
            assert f".{method}(" in product or f".{method}\n" in product or f".{method}," in product, (
                f"nobody uses {method}"
            )
            if method == "register_generator_state" and not recording.REGISTERED:
                continue
            assert f"def {method}(" in sources, f"{kind}.{method}"


def test_a_name_and_a_parameter_that_are_not_there_are_found():
    assert not complaints("import torch\ntorch.cuda.Event(blocking=True)")
    assert complaints("import torch\ntorch.cuda.Event(sleeping=True)")
    assert complaints("import torch\ntorch.cuda.made_up()")
    assert complaints("import torch\ntorch._C._cuda_made_up(1)")
    assert complaints("import torch\ntorch.cuda.set_device(1, 2, 3)")

"""Several releases of torch: libraries that are not there are stubbed, what cannot be had is said."""

import ctypes
import shutil
import subprocess

import pytest

from scripts import torch_matrix
from scripts.torch_matrix import LeftOutError, Wheel, main, stub_libraries


@pytest.mark.skipif(not shutil.which("gcc"), reason="makes libraries with gcc")
def test_a_library_whose_own_one_is_gone_is_loaded_with_a_stub_that_says_no_device(tmp_path):
    def compiled(name, text, *options):
        (tmp_path / "code.c").write_text(text)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", name, "code.c", *options], cwd=tmp_path, check=True)

    (tmp_path / "versions").write_text("made.2 { global: cudaCount; };\n")
    counts = "int cudaCount(int *n) { return *n = 3, 0; }"
    compiled("libcudamade.so.2", counts, "-Wl,--version-script=versions")
    compiled("libnccl.so.1", "int ncclMade(void) { return 0; }")
    user = "int cudaCount(int *); int ncclMade(void); int use(void) { int n; return ncclMade() + cudaCount(&n); }"
    linked = ("libcudamade.so.2", "libnccl.so.1", "-Wl,-rpath,$ORIGIN")
    compiled("libuser.so", user, *linked)
    for name in linked[:2]:
        (tmp_path / name).unlink()
    with pytest.raises(OSError, match="cannot open shared object"):
        ctypes.CDLL(tmp_path / "libuser.so")
    stub_libraries(tmp_path)
    assert ctypes.CDLL(tmp_path / "libuser.so").use() == 200


WHEELS = {
    "2.9.*": Wheel("2.9.1", "https://files.example/torch.whl", "triton==3.5.1"),
    "2.14.*": Wheel("2.14.1", "file:///disk/torch.whl", ""),
}


def answers(monkeypatch, folder, codes):
    """main() with made-up wheels and no environments; codes: of pytest by version."""

    def found(release, _index):
        if release not in WHEELS:
            raise LeftOutError("pip finds no wheel: none here")
        return WHEELS[release]

    monkeypatch.setattr(torch_matrix, "FOLDER", folder)
    monkeypatch.setattr(torch_matrix, "found", found)
    monkeypatch.setattr(torch_matrix, "python_with", lambda wheel: wheel.version)
    monkeypatch.setattr(torch_matrix, "tested", lambda version, _tests: codes[version])


def test_a_failure_and_nothing_at_all_are_exit_code_1(monkeypatch, capsys, tmp_path):
    answers(monkeypatch, tmp_path, {"2.9.1": 1, "2.14.1": 0})
    assert main(["--releases", "2.9.* 2.14.*"]) == 1
    assert "torch 2.9.1: FAILED" in capsys.readouterr().out
    assert main(["--releases", "2.11.*"]) == 1

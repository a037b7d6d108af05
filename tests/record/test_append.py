"""Files that grow by whole records, on disks that fail."""

import os
from unittest.mock import Mock

import pytest

from pbt_rl.record.append import AppendFile, Outage
from tests.helpers.disks import fill, free, small_disk


@pytest.mark.parametrize("cut", [True, False], ids=["at once", "later"])
def test_a_record_that_fits_in_part_is_cut_off(tmp_path, faulty_disk, monkeypatch, cut):
    file = AppendFile(tmp_path / "f")
    file.append(b"one\n")
    faulty_disk.room = 2
    with monkeypatch.context() as patch:
        if not cut:
            patch.setattr("os.ftruncate", Mock(side_effect=OSError(30, "Read-only file system")))
        with pytest.raises(OSError, match="No space"):
            file.append(b"three\n")
    assert (tmp_path / "f").read_bytes() == (b"one\n" if cut else b"one\nth")
    assert file.position == 4
    faulty_disk.room = None
    file.append(b"four\n")
    assert (tmp_path / "f").read_bytes() == b"one\nfour\n"
    assert file.position == 9


def test_a_real_full_disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        file = AppendFile(disk / "f")
        record = b"x" * 1000 + b"\n"
        fill(disk, leave=8192)
        with pytest.raises(OSError, match="No space"):
            [file.append(record) for _ in range(100)]
        written = file.position // len(record)
        assert written >= 4
        assert (disk / "f").read_bytes() == record * written
        free(disk)
        file.append(record)
        assert (disk / "f").read_bytes() == record * (written + 1)
        file.close()


def test_a_file_is_continued_from_a_position(tmp_path):
    (tmp_path / "f").write_bytes(b"one\ntwo\n")
    file = AppendFile(tmp_path / "f", 4)
    file.append(b"three\n")
    assert (tmp_path / "f").read_bytes() == b"one\nthree\n"
    assert AppendFile(tmp_path / "f", 1000).position == 10


def test_a_symbolic_link_is_not_followed(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "f").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic link"):
        AppendFile(tmp_path / "f", 0)
    assert (tmp_path / "target").read_text() == "mine"


def test_children_do_not_inherit_the_file(tmp_path):
    assert not os.get_inheritable(AppendFile(tmp_path / "f")._file)


def test_an_outage_is_said_once_and_attempts_are_spaced(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    outage = Outage("figures", said.append)
    attempts = 0
    for _ in range(100):  # one per second
        now[0] += 1
        if outage.due():
            attempts += 1
            outage.failed(OSError(28, "No space left on device"))
    assert attempts == 10
    outage.worked()
    outage.worked()
    assert [("figures" in text, "again" in text) for text in said] == [(True, False), (True, True)]

"""Files and directories that appear under their names only when they are whole."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from edl_allreduce import files
from edl_allreduce.files import AtomicFile


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_nobody_sees_a_file_before_it_is_whole(tmp_path):
    target = tmp_path / "data.tfrecord"
    target.write_bytes(b"old")
    with AtomicFile(target) as file:
        file.stream.write(b"new")
        assert target.read_bytes() == b"old"
        assert [n for n in names(tmp_path) if not n.startswith(".")] == ["data.tfrecord"]
    assert target.read_bytes() == b"new" and names(tmp_path) == ["data.tfrecord"]


@pytest.mark.parametrize("way", ["atomic", "drafted", "directory"])
def test_a_writer_that_fails_leaves_nothing_and_destroys_nothing(tmp_path, way):
    target = tmp_path / "target"
    if way == "directory":
        target.mkdir()
        (target / "old").touch()
    else:
        target.write_bytes(b"old")
    with pytest.raises(ValueError, match="torn"):
        match way:
            case "atomic":
                with AtomicFile(target) as file:
                    file.stream.write(b"half")
                    raise ValueError("torn")
            case "drafted":
                with files.drafted(target) as path:
                    path.write_bytes(b"half")
                    raise ValueError("torn")
            case "directory":
                with files.new_directory(target) as path:
                    (path / "half").touch()
                    raise ValueError("torn")
    assert names(tmp_path) == ["target"]
    assert names(target) == ["old"] if way == "directory" else target.read_bytes() == b"old"


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    for name in ("first", "second"):
        with files.new_directory(tmp_path / "deep" / "data") as fresh:
            (fresh / name).touch()
    assert names(tmp_path / "deep") == ["data"] and names(tmp_path / "deep" / "data") == ["second"]


def test_a_disk_that_is_full_at_the_end_keeps_the_old_file_and_gets_its_room_back(tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        files.write(target, b"new", durable=True)
    assert names(tmp_path) == ["target"] and target.read_bytes() == b"old"


def test_what_is_private_is_so_from_the_beginning(tmp_path):
    target = tmp_path / "job.json"
    with AtomicFile(target, private=True) as file:
        (draft,) = tmp_path.iterdir()
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        file.stream.write(b"token")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


KILLED = """
import os, signal, sys
from pathlib import Path
from edl_allreduce.files import AtomicFile
file = AtomicFile(Path(sys.argv[1]) / "model.keras")
file.stream.write(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_found_and_cleared_away_and_nothing_else(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = names(tmp_path)
    assert left.startswith(f".model.{socket.gethostname()}-") and left.endswith(".tmp.keras")
    elsewhere = tmp_path / ".model.elsewhere-1.0a1b2c3d.tmp.keras"
    others = [elsewhere, tmp_path / ".model.keras", tmp_path / ".models.keras", tmp_path / "model.keras"]
    for path in others:
        path.touch()
    alive = files.draft_of(tmp_path / "model.keras")
    alive.touch()
    files.clear_drafts(tmp_path / "model.keras")
    assert names(tmp_path) == sorted(path.name for path in (*others, alive))
    files.clear_drafts(tmp_path / "model.keras", alone=True)
    assert names(tmp_path) == sorted(path.name for path in others[1:])

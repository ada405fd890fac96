"""Scratch folders: gone when their process is, and never before, whoever else works in the same folder."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from icedb_engine.engine import open_scratch, remove_abandoned_scratch
from icedb_engine.limits import EngineLimits

HOLDER = """
import sys
from icedb_engine.engine import open_scratch
from icedb_engine.limits import EngineLimits

with open_scratch(EngineLimits(scratch_folder=sys.argv[1])) as scratch:
    (scratch / "spill").mkdir()
    print(scratch, flush=True)
    sys.stdin.read()
"""


def test_a_scratch_folder_is_removed_when_its_process_is_dead_and_never_before(tmp_path, monkeypatch):
    """Two containers that share a folder may have one host name, and see none of each other's processes."""

    def see_none(*_):
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", see_none)
    limits = EngineLimits(scratch_folder=str(tmp_path))
    unrelated = tmp_path / "icedb-other"
    unrelated.mkdir()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=pipe, stdout=pipe, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        with open_scratch(limits) as mine:
            assert theirs.is_dir()
            assert remove_abandoned_scratch(tmp_path) == 0
            assert mine.is_dir()
        monkeypatch.undo()
        other.kill()
        other.wait()
        assert theirs.is_dir(), "what was killed leaves it"
        with open_scratch(limits):
            assert not theirs.exists()
    assert sorted(tmp_path.iterdir()) == [unrelated]


def test_a_scratch_folder_that_was_taken_for_abandoned_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    limits, lost = EngineLimits(scratch_folder=str(tmp_path)), []
    lock = fcntl.flock

    def lose_once(descriptor, how):
        if not lost:
            lost.append(how)
            assert remove_abandoned_scratch(tmp_path) == 1, "by another process, in this moment"
        return lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lose_once)
    with open_scratch(limits) as scratch:
        assert lost
        assert scratch.is_dir()
        assert remove_abandoned_scratch(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_killed_before_it_locked_its_scratch_folder_leaves_none(tmp_path):
    with open_scratch(EngineLimits(scratch_folder=str(tmp_path))) as living:
        (tmp_path / f"{living.name}x").mkdir()
        assert remove_abandoned_scratch(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [living]

"""What leads from one snapshot of a table to a later one, as far as it is remembered."""

import random
from dataclasses import replace

import pytest
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveFiles
from icedb_log.log.state import LogState
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.serving import changes
from icedb_log.serving.changes import ChangeHistory


def snapshot_of(paths):
    log = LogFile(1, {}, tuple(FileMarker(path, 1, 1, row_count=1) for path in paths), commit_id="c")
    key = "wh/t/_log/0000000000001_c.jsonl"
    return fold(LogView("t", (ListedLogFile(key, str(hash(tuple(paths))), 1, 1, log),), 0), state=LogState())


@pytest.mark.parametrize("seed", range(30))
def test_changes_applied_to_an_earlier_snapshot_are_the_later_one(seed):
    chance = random.Random(seed)
    history, paths, snapshots = ChangeHistory(), set(), []
    for _ in range(25):
        # Few paths: they come and go and come again, and whole snapshots come again.
        paths = paths ^ set(chance.sample([f"wh/t/_data/p={n % 3}/{n}" for n in range(9)], chance.randint(0, 3)))
        now = snapshot_of(sorted(paths))
        if snapshots:
            history.note(snapshots[-1], now)
        snapshots.append(now)
    for _ in range(60):
        early, late = sorted(chance.choices(range(25), k=2))
        found = history.find(snapshots[early].snapshot_id, snapshots[late].snapshot_id)
        before, after = (set(snapshots[at].live.paths()) for at in (early, late))
        assert found is not None
        assert (found.came, found.went) == (after - before, before - after)


def test_what_is_not_remembered_is_not_answered(monkeypatch):
    monkeypatch.setattr(changes, "MAX_REMEMBERED_FILES", 5)
    history = ChangeHistory()
    one, two, three, large = (snapshot_of([f"wh/t/_data/p=1/{n}" for n in range(count)]) for count in (1, 3, 6, 60))
    assert history.find(one.snapshot_id, two.snapshot_id) is None
    assert history.find(one.snapshot_id, one.snapshot_id) == changes.PathChanges(
        one.snapshot_id, one.snapshot_id, set(), set()
    )
    history.note(one, two)
    assert history.find(two.snapshot_id, one.snapshot_id) is None  # later to earlier
    history.note(two, three)
    assert history.find(one.snapshot_id, three.snapshot_id) is not None
    history.note(three, one)
    assert history.find(one.snapshot_id, three.snapshot_id) is None  # forgotten: the oldest first
    assert len(history.find(three.snapshot_id, one.snapshot_id).went) == 5
    history.note(one, large)
    assert history.find(one.snapshot_id, large.snapshot_id) is None
    assert history.find(large.snapshot_id, large.snapshot_id) is not None


def test_a_gap_is_no_way_from_one_side_to_the_other():
    history = ChangeHistory()
    snapshots = [snapshot_of([f"wh/t/_data/p=1/{n}" for n in range(count)]) for count in (1, 2, 3, 4)]
    history.note(snapshots[0], snapshots[1])
    history.note(snapshots[2], snapshots[3])
    assert history.find(snapshots[0].snapshot_id, snapshots[3].snapshot_id) is None
    assert history.find(snapshots[2].snapshot_id, snapshots[3].snapshot_id) is not None


def test_other_columns_alone_are_a_step_without_files():
    history, before = ChangeHistory(), snapshot_of(["wh/t/_data/p=1/1"])
    after = replace(before, snapshot_id="other", live=LiveFiles(before.live.chunks))
    history.note(before, after)
    found = history.find(before.snapshot_id, "other")
    assert (found.came, found.went) == (set(), set())

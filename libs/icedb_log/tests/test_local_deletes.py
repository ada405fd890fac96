"""Deletes in the directory store: what stays, why, and what dead writers left."""

import errno
import os

import pytest
from icedb_log.store import local_store
from icedb_log.store.local_store import STORE_FOLDER, LocalObjectStore
from icedb_log.store.object_store import list_all


@pytest.fixture
def root(tmp_path):
    return tmp_path / "warehouse"


@pytest.fixture
def store(root):
    return LocalObjectStore(root)


def write_all(root, keys):
    for key in keys:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_file_that_may_not_be_deleted_keeps_no_other_from_going(store, root, monkeypatch):
    keys = [f"t/{number % 3}/{number}" for number in range(300)]  # more than there are locks
    write_all(root, keys)
    refused = {"t/1/1": errno.EACCES, "t/1/4": errno.EPERM, "t/1/7": errno.EROFS, "t/1/13": errno.EIO}
    unlink = os.unlink

    def refuse(path, **options):
        key = str(path).removeprefix(f"{root}/")
        if key.endswith("0"):  # somebody else was faster
            unlink(path, **options)
        if key in refused:
            raise OSError(refused[key], os.strerror(refused[key]))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    report = store.delete(keys)
    assert {each.key: each.kind for each in report.failed} == {
        "t/1/1": "denied",
        "t/1/4": "denied",
        "t/1/7": "denied",
        "t/1/13": "other",
    }
    assert report.deleted == tuple(key for key in keys if key not in refused)
    monkeypatch.undo()
    assert {info.key for info in list_all(store, "").objects} == set(refused)
    assert not (root / "t" / "2").exists()


def test_keys_of_a_folder_whose_lock_cannot_be_had_fail_and_others_go(store, root, monkeypatch):
    keys = [f"t/{folder}/{number}" for folder in range(20) for number in range(2)]
    write_all(root, keys)
    monkeypatch.setattr(local_store, "LOCK_WAIT_MS", 5)
    number = local_store._lock_number(keys[0])
    with store._locked(keys[0]):
        report = LocalObjectStore(root).delete(keys)
    assert {each.key: each.kind for each in report.failed} == {
        key: "unanswered" for key in keys if local_store._lock_number(key) == number
    }
    assert {*keys[:2]} <= {each.key for each in report.failed}
    assert len(report.deleted) >= 20


def test_a_writer_has_the_lock_of_a_folder_between_runs_of_a_large_delete(store, root, monkeypatch):
    keys = [f"t/{number}" for number in range(2 * local_store.KEYS_PER_LOCK + 1)]
    write_all(root, keys)
    taken, locked = [], store._locked
    monkeypatch.setattr(store, "_locked", lambda key: taken.append(key) or locked(key))
    assert len(store.delete(keys).deleted) == len(keys)
    assert taken == keys[:: local_store.KEYS_PER_LOCK]


def test_what_dead_writers_left_is_removed_once_it_is_old(store, root):
    store.put("key", b"x")
    now_ms = store.list_page("").store_now_ms
    assert store.abort_stale_uploads("t/", before_ms=now_ms + 60_000) == 0
    left = root / STORE_FOLDER / "new" / "left"
    left.write_bytes(b"half")
    assert store.abort_stale_uploads("t/", before_ms=now_ms - 60_000) == 0
    assert left.exists()
    assert store.abort_stale_uploads("t/", before_ms=now_ms + 60_000) == 1
    assert not left.exists()
    assert store.get("key").body == b"x"
    assert LocalObjectStore(root / "none").abort_stale_uploads("", before_ms=now_ms) == 0

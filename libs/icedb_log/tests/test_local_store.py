"""The directory store: the acceptance suite, and what is particular to files, folders and processes."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from icedb_log.clock import SystemClock
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from icedb_log.store import local_store
from icedb_log.store.local_store import STORE_FOLDER, LocalObjectStore
from icedb_log.store.object_store import delete_or_raise, list_all
from icedb_sim.fakes.store_acceptance import StoreAcceptance, expect


@pytest.fixture
def root(tmp_path):
    return tmp_path / "warehouse"


@pytest.fixture
def store(root):
    return LocalObjectStore(root)


class TestLocalObjectStore(StoreAcceptance):
    @pytest.fixture
    def store(self, root):
        return LocalObjectStore(root)

    def reopen(self, store):
        return LocalObjectStore(Path(store._root))


class TestWithoutHashes(TestLocalObjectStore):
    """The ETags of large files, for objects of every size."""

    @pytest.fixture
    def store(self, root, monkeypatch):
        monkeypatch.setattr(local_store, "MAX_HASHED_BYTES", -1)
        return LocalObjectStore(root)

    def test_equal_content_of_a_small_object_has_an_equal_etag(self, store):
        first = store.put("etag/one", b"same")
        assert store.put("etag/two", b"same") != first, "large objects are told apart by writing, not content"


def test_temporary_files_go_when_a_write_is_done_and_old_ones_with_the_probe(store, root, monkeypatch):
    store.put("key", b"x")
    expect(PreconditionFailed, lambda: store.put_if_absent("key", b"y"))
    expect(PreconditionFailed, lambda: store.put_if_match("key", b"y", etag="0"))
    new = root / STORE_FOLDER / "new"
    assert list(new.iterdir()) == []
    (new / "left").write_bytes(b"by a dead process")
    store.probe()
    assert [path.name for path in new.iterdir()] == ["left"], "it may be of a live one"
    monkeypatch.setattr(local_store, "STALE_TEMPORARY_MS", -1000)
    store.probe()
    assert list(new.iterdir()) == []


def test_the_stores_own_files_are_no_objects(store, root):
    store.put("a", b"x")
    store.list_page("")
    assert (root / STORE_FOLDER / "clock").exists()
    for prefix in ("", ".", STORE_FOLDER, f"{STORE_FOLDER}/"):
        assert all(info.key == "a" for info in list_all(store, prefix).objects)
    assert store.list_folders("") == ()
    error = expect(InvalidRequest, lambda: store.put(f"{STORE_FOLDER}/locks/00", b"x"))
    assert STORE_FOLDER in str(error)
    expect(InvalidRequest, lambda: store.get(f"{STORE_FOLDER}/clock"))
    assert store.delete([f"{STORE_FOLDER}/clock"]).failed[0].key == f"{STORE_FOLDER}/clock"
    assert (root / STORE_FOLDER / "clock").exists()


def test_an_object_cannot_be_a_folder_of_others(store):
    store.put("a", b"x")
    store.put("b/c", b"x")
    for call in (store.put, store.put_if_absent):
        assert "another key" in str(expect(InvalidRequest, lambda: call("a/below", b"x")))
        assert "another key" in str(expect(InvalidRequest, lambda: call("b", b"x")))
    expect(NotFound, lambda: store.get("b"))
    assert [info.key for info in list_all(store, "").objects] == ["a", "b/c"]


def test_empty_folders_are_removed_and_never_listed(store, root):
    store.put("t/_data/d=1/a", b"x")
    store.put("t/_data/d=2/a", b"x")
    (root / "t/empty/inside").mkdir(parents=True)
    store.delete(["t/_data/d=1/a"])
    assert not (root / "t/_data/d=1").exists()
    assert (root / "t/_data/d=2").exists()
    assert store.list_folders("t/") == ("_data",)
    store.delete(["t/_data/d=2/a"])
    assert not (root / "t/_data").exists()
    assert store.list_folders("") == ()
    assert root.exists()


def test_writes_and_deletes_in_one_folder_lose_nothing(store):
    def write(number):
        key = f"folder/deep/{number}"
        store.put_if_absent(key, b"x")
        store.delete([key])
        store.put_if_absent(f"kept/{number % 7}/{number}", b"x")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(300)))
    assert len(list_all(store, "kept/").objects) == 300
    assert list_all(store, "folder/").objects == ()


def test_an_object_is_as_old_as_its_name_not_as_its_bytes(store, root, monkeypatch):
    # A committer that stalls between writing the bytes and giving them their name (J1).
    link = os.link
    named_after_ms = []

    def slow_link(source, target):
        until_ms = store.list_page("").store_now_ms + 60
        while store.list_page("").store_now_ms < until_ms:
            pass
        named_after_ms.append(until_ms)
        link(source, target)

    monkeypatch.setattr(os, "link", slow_link)
    store.put_if_absent("key", b"x")
    assert (root / "key").stat().st_mtime_ns // 1_000_000 < named_after_ms[0]
    assert store.head("key").modified_ms >= named_after_ms[0]
    assert store.list_page("").objects[0].modified_ms >= named_after_ms[0]


def test_versions_differ_although_inode_tick_and_size_are_used_again(tmp_path):
    for number, unique_id in enumerate(("0" * 27 + "abcde", "0" * 27 + "00001")):
        stat = local_store.write_new_file(str(tmp_path / str(number)), iter((b"x",)), unique_id)
        assert stat.st_mtime_ns % 1_000_000 == int(unique_id, 16) % 1_000_000
        assert stat.st_mtime_ns < stat.st_ctime_ns


@pytest.mark.parametrize("is_other_disk", [False, True])
def test_a_file_that_nobody_needs_becomes_the_object_where_that_is_possible(
    store, root, tmp_path, monkeypatch, is_other_disk
):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    written = source.stat()
    if is_other_disk:
        monkeypatch.setattr(os, "rename", lambda *_: _refuse_move())
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle, fsync=os.fsync: synced.append(os.fstat(handle)) or fsync(handle))
    store.upload("a/b", source, may_move=True)
    made = (root / "a/b").stat()
    assert source.exists() is is_other_disk
    assert (made.st_ino == written.st_ino) is not is_other_disk
    assert made.st_ino in {each.st_ino for each in synced}, "its content is durable before it is acknowledged"
    assert made.st_ctime_ns > written.st_ctime_ns
    assert store.get("a/b").body == b"x" * 100_000
    assert list((root / STORE_FOLDER / "new").iterdir()) == []


def _refuse_move():
    raise OSError(errno.EXDEV, "lies on another disk")


def test_nothing_comes_between_the_look_at_an_etag_and_the_replace(store, monkeypatch):
    etag = store.put("key", b"old")
    replace, others = os.replace, []

    def slow_replace(source, target):
        def delete_and_create():
            store.delete(["key"])
            store.put_if_absent("key", b"new")

        monkeypatch.undo()
        others.append(threading.Thread(target=delete_and_create))
        others[0].start()
        others[0].join(0.1)  # it cannot end before the replace; without the lock it does
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow_replace)
    store.put_if_match("key", b"replaced", etag=etag)
    others[0].join()
    assert store.get("key").body == b"new"


def test_a_page_is_no_mixture_of_two_states(store, monkeypatch):
    # The input log file is deleted and the merged one stripped between the looks at the two (J2, J3, R1).
    store.put("log/input", b"rows")
    etag = store.put("log/merged", b"rows, and a tombstone of the input")
    stat, looks = os.stat, []

    def stat_and_change(path, *arguments, **options):
        if str(path).endswith("/log/merged"):
            looks.append(path)
            if len(looks) == 2:
                store.delete(["log/input"])
                store.put_if_match("log/merged", b"rows", etag=etag)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat_and_change)
    page = store.list_page("log/")
    assert len(looks) > 2
    assert [(info.key, info.size_bytes) for info in page.objects] == [("log/merged", 4)]


def test_a_listing_reads_no_large_file_and_no_small_one_twice(store, monkeypatch):
    store.put("large", b"x" * (local_store.MAX_HASHED_BYTES + 1))
    store.put("small", b"x" * local_store.MAX_HASHED_BYTES)
    other = LocalObjectStore(Path(store._root))
    first = other.list_page("").objects
    reads = []
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(arguments) or b"")
    assert other.list_page("").objects == first == store.list_page("").objects
    assert reads == []
    assert LocalObjectStore(Path(store._root)).list_page("large").objects == first[:1]
    assert reads == []


def test_a_write_is_durable_before_it_is_acknowledged(store, root, monkeypatch):
    synced = []
    fsync = os.fsync

    def remember(handle):
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", remember)
    store.put_if_absent("t/_log/1", b"x")
    assert any(f"/{STORE_FOLDER}/new/" in path for path in synced), "content"
    assert synced[-1] == f"{root}/t/_log", "its name"
    assert {str(root), f"{root}/t"} <= set(synced), "the names of new folders"
    synced.clear()
    store.put("t/_log/1", b"y")
    assert synced[-1] == f"{root}/t/_log"


def test_a_disk_that_does_not_confirm_leaves_the_outcome_unknown(store, monkeypatch):
    etag = store.put("key", b"x")

    def broken(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local_store, "sync_folder", broken)
    expect(CommitOutcomeUnknown, lambda: store.put_if_absent("other", b"x"))
    expect(CommitOutcomeUnknown, lambda: store.put_if_match("key", b"y", etag=etag))
    expect(Unavailable, lambda: store.put("key", b"z"))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EACCES, "permission"),
        (errno.EROFS, "read-write"),
        (errno.EMFILE, "ulimit"),
    ],
)
def test_a_disk_that_refuses_is_unavailable_with_path_and_remedy(store, root, monkeypatch, number, remedy):
    store.put("key", b"before")

    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    for call in (
        lambda: store.put_if_absent("new", b"x"),
        lambda: store.put_if_match("key", b"x", etag="0"),
        lambda: store.put("key", b"x"),
    ):
        error = str(expect(Unavailable, call))
        assert str(root) in error
        assert remedy in error
    monkeypatch.undo()
    assert store.get("key").body == b"before"
    assert list((root / STORE_FOLDER / "new").iterdir()) == []
    monkeypatch.setattr(os, "unlink", refuse)
    report = store.delete(["key", "missing"])
    assert report.deleted == ("missing",)
    assert [(each.key, remedy in each.reason) for each in report.failed] == [("key", True)]
    assert remedy in str(expect(Unavailable, lambda: delete_or_raise(store, ["key"])))


@pytest.mark.parametrize("hidden", ["/t", "/t/key"])
def test_what_may_not_be_looked_at_does_not_count_as_deleted(store, root, monkeypatch, hidden):
    store.put("t/key", b"x")
    stat, unlink = os.stat, os.unlink

    def hide(call):
        def guarded(path, *arguments, **options):
            if str(path).startswith(f"{root}{hidden}"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return call(path, *arguments, **options)

        return guarded

    monkeypatch.setattr(os, "stat", hide(stat))
    monkeypatch.setattr(os, "unlink", hide(unlink))
    report = store.delete(["t/key"])
    assert report.deleted == ()
    assert [(each.key, each.kind) for each in report.failed] == [("t/key", "denied")]


def test_a_folder_is_no_object_and_stays(store):
    store.put("t/a/key", b"x")
    assert store.delete(["t/a", "t/a/key/below"]).failed == ()
    assert store.get("t/a/key").body == b"x"


def test_a_page_that_never_stands_still_is_unavailable(store, monkeypatch):
    store.put("key", b"x")
    stat = os.stat

    def restless(path, *arguments, **options):
        if str(path).endswith("/key"):
            store.put("key", b"x")
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", restless)
    monkeypatch.setattr(local_store, "MAX_LOOKS", 5)
    assert "changed 5 times" in str(expect(Unavailable, lambda: store.list_page("key")))


def test_roots_that_cannot_be_a_store(tmp_path):
    (tmp_path / "file").write_text("x")
    assert "absolute" in str(expect(InvalidRequest, lambda: LocalObjectStore(Path("relative"))))
    assert "directory" in str(expect(InvalidRequest, lambda: LocalObjectStore(tmp_path / "file")))
    below = LocalObjectStore(tmp_path / "file" / "below")
    assert str(tmp_path) in str(expect(InvalidRequest, below.probe))


def test_a_directory_that_is_not_there_holds_nothing(root):
    store = LocalObjectStore(root)
    before_ms = SystemClock().now_ms()
    page = store.list_page("")
    assert (page.objects, page.next_token) == ((), None)
    assert page.store_now_ms >= before_ms
    assert store.list_folders("") == ()
    assert store.delete(["a"]).failed == ()
    expect(NotFound, lambda: store.get("a"))
    assert not root.exists()
    store.put("a/b/c", b"x")
    assert store.get("a/b/c").body == b"x"


def test_what_no_store_wrote_is_not_listed(store, root):
    store.put("t/key", b"x")
    os.mkfifo(root / "t" / "pipe")
    (root / "t" / "dangling").symlink_to("nowhere")
    (root / "t" / "line\nfeed").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(root) + b"/t/latin-\xe9")).write_bytes(b"x")
    assert [info.key for info in list_all(store, "").objects] == ["t/key"]
    expect(NotFound, lambda: store.get("t/pipe"))
    expect(NotFound, lambda: store.get("t/dangling"))


def test_a_system_that_reads_and_writes_less_than_asked_for_is_asked_again(store, monkeypatch):
    """As POSIX allows it: interrupted by a signal, across pages of a network disk, on a disk that is nearly full."""
    body = os.urandom(1000)
    write, pread = os.write, os.pread
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, bytes(content)[:300]))
    monkeypatch.setattr(os, "pread", lambda handle, length, start: pread(handle, min(length, 300), start))
    store.put("a/b", body)
    store.put_if_absent("a/c", body)
    for key in ("a/b", "a/c"):
        assert store.get(key).body == body
        assert store.get_range(key, start=10, length=900).body == body[10:910]
        assert store.get_range(key, start=10, length=2000).body == body[10:]

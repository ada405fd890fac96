"""The reader: R1, R2, S3, and the cache by key and ETag."""

import gc
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from icedb_log.errors import CorruptLog, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.reader import MAX_READ_ATTEMPTS, LogReader
from icedb_log.model import LogFile
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.log_views import data, dead, kill, live, log_key


def write(table, time_ms, *markers, merged=False, **fields):
    key = log_key(time_ms, merged=merged)
    table.store.inner.put(key, encode_log_file(LogFile(time_ms, {}, tuple(markers), commit_id="00", **fields)))
    return key


def paths_of(view):
    return [marker.path for marker in fold(view).live]


def test_an_empty_log_is_read(table):
    assert table.view().files == ()


def test_a_second_read_fetches_only_what_is_new(table):
    for time_ms in range(1, 4):
        write(table, time_ms, live(str(time_ms)))
    reader = table.reader()
    first = reader.read()
    table.store.calls.clear()
    assert reader.read().files == first.files
    assert table.store.keys_of("get") == []
    new = write(table, 4, live("4"))
    table.store.calls.clear()
    assert len(reader.read().files) == 4
    assert table.store.keys_of("get") == [new]


def test_a_log_file_of_the_same_etag_written_again_is_not_fetched_but_gets_its_new_time(table):
    key = write(table, 1, live("1"))
    reader = table.reader()
    before = reader.read().files[0]
    table.clock.advance(500)
    write(table, 1, live("1"))
    table.store.calls.clear()
    after = reader.read().files[0]
    assert (after.etag, after.modified_ms) == (before.etag, before.modified_ms + 500)
    assert table.store.keys_of("get") == []
    assert after.key == key


def test_a_log_file_that_was_replaced_is_fetched_again(table):
    write(table, 1, live("1"), dead("0", 1))
    reader = table.reader()
    reader.read()
    write(table, 1, live("1"))
    assert fold(reader.read()).tombstoned_ms == {}


def test_a_log_file_that_was_replaced_by_one_of_the_same_size_is_fetched_again(table):
    write(table, 1, live("1"))
    reader = table.reader()
    assert paths_of(reader.read()) == [data("1")]
    write(table, 1, live("2"))
    assert paths_of(reader.read()) == [data("2")]


def test_a_log_file_that_was_replaced_is_let_go_before_the_new_one_is_fetched(table):
    """Both may be large: a log file of a million markers takes half a gigabyte and more."""
    key = write(table, 1, live("1"))
    kept = write(table, 2, live("2"))
    reader = table.reader()
    reader.read()
    write(table, 1, live("1"), live("other"))
    held = []
    table.store.script = [Fault("get", None, key, before=lambda: held.append(set(reader._cache)))]
    assert len(paths_of(reader.read())) == 3
    assert held == [{kept}]


def test_a_log_file_that_is_gone_leaves_the_cache(table):
    write(table, 1, live("1"))
    key = write(table, 2, live("2"))
    reader = table.reader()
    reader.read()
    table.store.delete([key])
    assert paths_of(reader.read()) == [data("1")]


@pytest.mark.parametrize("threads", [1, 16])
def test_many_log_files_are_read_in_key_order(table, threads):
    keys = [write(table, time_ms, live(str(time_ms))) for time_ms in range(1, 40)]
    reader = LogReader(table, clock=table.clock, page_size=7, fetch=threads)
    assert [file.key for file in reader.read().files] == keys


def test_log_files_are_fetched_by_shared_threads_or_by_the_caller_where_the_store_does_not_wait(table):
    keys = [write(table, time_ms, live(str(time_ms))) for time_ms in range(1, 40)]
    names = set()
    table.store.script = [
        Fault("get", None, key, before=lambda: names.add(threading.current_thread().name)) for key in keys
    ]
    script = list(table.store.script)
    with ThreadPoolExecutor(2, "shared") as pool:
        reader = LogReader(table, clock=table.clock, fetch=pool)
        assert [file.key for file in reader.read().files] == keys
        assert {name.partition("_")[0] for name in names} == {"shared"}
        names.clear()
        table.store.script = script
        table.store.max_parallel_reads = 1
        reader = LogReader(table, clock=table.clock, fetch=pool)
        assert [file.key for file in reader.read().files] == keys
        assert names == {threading.current_thread().name}


def test_log_files_are_parsed_by_the_caller_when_all_are_fetched_and_nobody_looks_for_garbage(table, monkeypatch):
    """Threads that parse wait for each other: a cold read of 2,000 log files took a third more processor time."""
    keys = [write(table, time_ms, live(str(time_ms))) for time_ms in range(1, 40)]
    parse, seen = LogReader._parse, []

    def note(reader, info, body):
        fetched = len(table.store.keys_of("get"))
        seen.append((threading.current_thread(), fetched, gc.isenabled()))
        return parse(reader, info, body)

    monkeypatch.setattr(LogReader, "_parse", note)
    assert [file.key for file in LogReader(table, clock=table.clock, fetch=4).read().files] == keys
    assert seen == [(threading.current_thread(), len(keys), False)] * len(keys)
    assert gc.isenabled()


def test_r1_a_long_log_in_a_directory_is_one_page_of_one_moment_and_listed_once(table, tmp_path, monkeypatch):
    store = LocalObjectStore(tmp_path)
    place = TableStore(store, table.paths)
    folder = tmp_path / table.paths.log_prefix
    folder.mkdir(parents=True)
    body = encode_log_file(LogFile(1, commit_id=None))
    for time_ms in range(MAX_KEYS_PER_PAGE + 1):
        (tmp_path / log_key(time_ms)).write_bytes(body)
    scandir, scanned = os.scandir, Counter()
    monkeypatch.setattr(os, "scandir", lambda path: scanned.update([str(path).rstrip("/")]) or scandir(path))
    assert len(LogReader(place, clock=table.clock).read().files) == MAX_KEYS_PER_PAGE + 1
    assert scanned[str(folder)] == 2, "two looks make a page (R1 of the store), and there is no second listing"


@pytest.mark.parametrize("fault", [IndexError("of a decoder"), Unavailable("gone")])
def test_a_log_file_that_cannot_be_fetched_is_never_left_out(table, fault):
    keys = [write(table, time_ms, live(str(time_ms))) for time_ms in range(1, 40)]

    def fail():
        raise fault

    table.store.script = [Fault("get", None, keys[20], before=fail)]
    with pytest.raises(type(fault), match=str(fault)):
        LogReader(table, clock=table.clock, fetch=4).read()


def test_r1_a_log_file_that_vanishes_between_list_and_get_starts_the_read_again(table):
    write(table, 1, live("1"))
    key = write(table, 2, live("2"))
    table.store.script = [Fault("get", None, key, before=lambda: table.store.inner.delete([key]))]
    assert paths_of(table.view()) == [data("1")]


def test_r1_a_log_file_that_is_replaced_between_list_and_get_starts_the_read_again(table):
    key = write(table, 1, live("1"), dead("0", 1))
    table.store.script = [Fault("get", None, key, before=lambda: write(table, 1, live("1")))]
    assert fold(table.view()).tombstoned_ms == {}
    # With the ETag of the listing, not with whatever is there:
    assert len(table.store.keys_of("list_page")) == 2


def test_r1_a_read_that_starts_again_fetches_only_what_has_changed(table):
    """Beside a vacuum that strips one log file after another, a read from nothing each time would never end."""
    for number in range(6):
        write(table, number, live(f"x{number}"))
    reader = table.reader()
    table.store.calls.clear()
    # Each of the first five is replaced just before it is asked for.
    table.store.script = [
        Fault("get", None, log_key(number), before=lambda n=number: write(table, n, live(f"x{n}"), live(f"y{n}")))
        for number in range(5)
    ]
    assert len(fold(reader.read()).live) == 11
    assert len(table.store.keys_of("get")) == 6 + 5


def test_r1_pages_that_contradict_each_other_start_the_read_again(table):
    """Page one shows an input, the janitor deletes it and strips the merge, page two shows the stripped merge."""
    old = write(table, 1, live("in"))
    for time_ms in (2, 3):
        write(table, time_ms, live(f"other{time_ms}"))
    merged = write(table, 9, live("out"), dead("in", 9), log_tombstones=(kill(1, 9),), merged=True)

    def vacuum():
        table.store.inner.delete([old])
        write(table, 9, live("out"), merged=True)

    reader = table.reader(page_size=2)
    reader.read()  # with page one in the cache no GET finds out that the input is gone
    table.store.script = [Fault("list_page", None), Fault("list_page", None, before=vacuum)]
    seen = paths_of(reader.read())
    assert merged in table.keys(table.paths.log_prefix)
    assert data("in") not in seen
    assert seen == [data("other2"), data("other3"), data("out")]


def test_r1_a_log_file_that_is_replaced_behind_its_page_starts_the_read_again(table):
    """Page one shows a merge that killed an input; it is stripped, and the input, whose key was free, sealed or reused.

    No name comes and none goes, and the cache has both as they were: only the second look's ETags tell.
    """
    keys = [write(table, time_ms, live(f"{time_ms}")) for time_ms in range(1, 5)]
    reader = table.reader(page_size=2)
    reader.read()
    table.store.script = [
        Fault("list_page", None),
        Fault("list_page", None, before=lambda: write(table, 1, live("new"))),
    ]
    view = reader.read()
    assert [file.key for file in view.files] == keys
    assert paths_of(view) == [data(name) for name in ("2", "3", "4", "new")]


def test_r1_one_page_is_not_listed_twice(table):
    write(table, 1, live("1"))
    table.store.calls.clear()
    table.view()
    assert len(table.store.keys_of("list_page")) == 1


def test_r1_a_log_file_that_appears_between_the_two_looks_does_not_start_the_read_again(table):
    for time_ms in range(1, 4):
        write(table, time_ms, live(str(time_ms)))
    # The second look begins with the third page that is asked for.
    table.store.script = [
        Fault("list_page", None),
        Fault("list_page", None),
        Fault("list_page", None, before=lambda: write(table, 9, live("9"))),
    ]
    assert data("9") not in paths_of(table.reader(page_size=2).read())


def test_r1_a_log_that_never_holds_still_is_unavailable_after_bounded_attempts(table):
    write(table, 1, live("1"))
    counter = iter(range(1000))
    table.store.script = [
        Fault("get", None, before=lambda: write(table, 1, live(f"new{next(counter)}"))) for _ in range(50)
    ]
    before_ms = table.clock.now_ms()
    with pytest.raises(Unavailable, match=r"changed during each of 10 reads"):
        table.view()
    assert 50 - len(table.store.script) == MAX_READ_ATTEMPTS
    assert table.clock.now_ms() > before_ms  # backs off


def test_r2_a_refresh_that_takes_too_long_is_thrown_away(table):
    key = write(table, 1, live("1"))
    reader = LogReader(table, clock=table.clock, max_refresh_ms=100, fetch=1)
    table.store.script = [Fault("get", None, key, before=lambda: table.clock.advance(101))]
    assert paths_of(reader.read()) == [data("1")]
    assert len(table.store.keys_of("get")) == 2  # nothing of the slow refresh was kept
    write(table, 2, live("2"))
    table.store.script = [Fault("get", None, before=lambda: table.clock.advance(101)) for _ in range(50)]
    with pytest.raises(Unavailable, match="longer than 100 ms"):
        reader.read()


def test_r2_the_wall_clock_does_not_decide(table):
    key = write(table, 1, live("1"))
    table.store.script = [Fault("get", None, key, before=lambda: table.clock.set_wall(0))]
    assert paths_of(table.view()) == [data("1")]


def test_the_stores_time_is_from_before_the_first_log_file_was_listed(table):
    for time_ms in range(1, 4):
        write(table, time_ms, live(str(time_ms)))
    started_ms = table.clock.now_ms()
    table.store.script = [Fault("list_page", None), Fault("list_page", None, before=lambda: table.clock.advance(50))]
    assert table.reader(page_size=2).read().store_now_ms == started_ms


@pytest.mark.parametrize(
    "name", ["", "readme", "1_00.jsonl", "0000000000001_m_.jsonl", "0000000000001_X X.jsonl", "0000000000001_00.json"]
)
def test_s3_anything_else_below_the_log_is_corrupt(table, name):
    write(table, 1, live("1"))
    key = f"{table.paths.log_prefix}sub/{name}" if not name else table.paths.log_prefix + name
    table.store.inner.put(key.rstrip("/"), encode_log_file(LogFile(1)))
    with pytest.raises(CorruptLog, match="not the name of a log file"):
        table.view()


def test_s3_a_malformed_log_file_is_never_skipped(table):
    write(table, 1, live("1"))
    table.store.inner.put(log_key(2), b"garbage")
    with pytest.raises(CorruptLog, match=log_key(2)):
        table.view()


@pytest.mark.parametrize("body", [b"garbage", b'{"v":1,"t":9,"sch":1,"f":2,"cid":"00"}\n{}'])
@pytest.mark.parametrize("read", [lambda table: table.view(), lambda table: table.reader().heads.read()])
def test_s3_the_error_about_a_damaged_log_file_names_what_where_and_the_remedy(table, read, body):
    table.store.inner.put(log_key(2), body)
    with pytest.raises(CorruptLog, match=rf"{log_key(2)}: line 0.*`icedb fsck t`.*`icedb rebuild t .*docs/repair.md"):
        read(table)


def test_s3_a_log_file_under_another_time_than_its_own_is_corrupt(table):
    table.store.inner.put(log_key(2), encode_log_file(LogFile(1, commit_id="00")))
    with pytest.raises(CorruptLog, match="t is 1, its name says 2"):
        table.view()


def test_tables_whose_names_begin_alike_do_not_see_each_other(table):
    write(table, 1, live("1"))
    other = TablePaths("t2", "wh/t2")
    table.store.inner.put(other.log_key(time_ms=1, commit_id="00", is_merged=False), b"garbage")
    assert len(table.view().files) == 1


def test_an_unavailable_store_is_not_taken_for_a_changed_log(table):
    write(table, 1, live("1"))
    table.store.script = [Fault("get", Effect.UNAVAILABLE)]
    with pytest.raises(Unavailable, match="by the script"):
        table.view()

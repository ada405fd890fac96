"""Answers are serialized once for each version, pruned without being built anew, and cut into pages."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.log.state import LogState
from icedb_log.serving import selection
from icedb_log.serving.selection import FileSelector
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import parse_partition_filters
from icedb_proto import snapshot_pb2
from icedb_snapshot.answers import Answer, AnswerCache, AnswerTooLarge, build_answer
from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.requests import ServiceParts
from icedb_snapshot.settings import SnapshotSettings
from icedb_snapshot.snapshot_calls import SnapshotCalls


@pytest.fixture
def build(warehouse, clock):
    known = {}

    def build(config, *filters, where=None, name="events", presign_ms=None):
        paths = warehouse.table(name).paths
        reader, state = known.setdefault(
            name, (LogReader(TableStore(warehouse.store, paths), clock=clock, is_compact=True), LogState())
        )
        snapshot = fold(reader.read(), state=state)
        selector = FileSelector(paths, config, snapshot, filters=parse_partition_filters(filters), where=where)
        selections = selector.select_chunks(snapshot.live)
        return build_answer(TableStore(warehouse.store, paths), snapshot, selections, presign_ms=presign_ms)

    return build


@pytest.fixture
def ask(build):
    def ask(config, *filters, limit=1 << 20, **fields):
        body = build(config, *filters, **fields).render(staleness_ms=7, max_message_bytes=limit)
        return snapshot_pb2.GetSnapshotResponse.FromString(body)

    return ask


def test_an_empty_table(tables, ask):
    answer = ask(tables.create())
    assert (answer.table, answer.file_count, answer.total_file_count, answer.row_count) == ("events", 0, 0, 0)
    assert answer.HasField("row_count")
    assert not answer.HasField("last_commit_ms")
    assert not answer.HasField("horizon_ms")
    assert not answer.HasField("as_of_ms")
    assert answer.staleness_ms == 7


def test_files_carry_everything_a_reader_needs(tables, ask, clock, store):
    config = tables.create(partition=("d=day(ts)", "u=bucket[4](user)"))
    _, (key,) = tables.commit(files=[("d=2026-01-02/u=3", 5)])
    answer = ask(config)
    (file,) = answer.files
    assert (file.path, file.uri, file.size_bytes, file.row_count) == (key, store.uri(key), 100, 5)
    assert file.created_ms == answer.last_commit_ms == clock.ms
    assert [(v.name, v.value) for v in file.partition_values] == [("d", "2026-01-02"), ("u", "3")]
    assert [(c.name, c.type) for c in answer.schema] == [("ts", "TIMESTAMP"), ("event", "VARCHAR")]


def test_rows_that_nobody_counted_are_not_those_of_the_file_before(tables, ask):
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 5), ("d=2026-01-02", None), ("d=2026-01-02", 0)])
    files = ask(config).files
    assert [(file.HasField("row_count"), file.row_count) for file in files] == [(True, 5), (False, 0), (True, 0)]


def test_pruning_keeps_totals_of_what_is_kept_and_of_all(tables, ask):
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 5), ("d=2026-01-02", 6), ("d=2026-01-03", 7)])
    answer = ask(config, "d=2026-01-02")
    assert (answer.file_count, answer.row_count, answer.size_bytes) == (2, 11, 200)
    assert answer.total_file_count == 3
    assert answer.snapshot_id == ask(config).snapshot_id
    assert [file.path for file in ask(config).files] == sorted(file.path for file in ask(config).files)


def test_a_partition_that_cannot_be_told_is_never_pruned(tables, ask, store, warehouse):
    config = tables.create()
    tables.commit(files=[("", 5), ("d=2026-01-02", 6)])
    assert ask(config, "d=2026-01-03").row_count == 5


def test_null_partition_values_are_absent_on_the_wire(tables, ask):
    config = tables.create(partition=("country",))
    tables.commit(files=[("country=__HIVE_DEFAULT_PARTITION__", 5), ("country=DE", 6), ("country=_", 7)])
    files = ask(config, "country is null").files
    assert [v.HasField("value") for file in files for v in file.partition_values] == [False]
    assert ask(config, "country=").row_count == 7


def test_rows_are_absent_when_some_file_does_not_say(tables, ask):
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 5), ("d=2026-01-03", None)])
    assert not ask(config).HasField("row_count")
    assert ask(config, "d=2026-01-02").row_count == 5


def test_too_large_an_answer_names_limit_and_remedy(tables, ask):
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 1)] * 50)
    with pytest.raises(AnswerTooLarge, match=r"4096 bytes.*call StreamSnapshot.*partition filters"):
        ask(config, limit=4096)
    assert ask(config, "d=2026-01-03", limit=4096).file_count == 0


def test_a_file_is_serialized_once_while_its_chunk_stays(tables, ask, store, monkeypatch):
    made, uri = [], store.uri
    monkeypatch.setattr(store, "uri", lambda key: (made.append(key), uri(key))[1])
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 1), ("d=2026-01-03", 1)])
    ask(config)
    ask(config, "d=2026-01-02")
    tables.commit(files=[("d=2026-01-04", 1)])
    assert ask(config).file_count == 3
    assert len(made) == len(set(made)) == 3


@pytest.mark.parametrize("page_bytes", [1, 300, 1000, 5000])
def test_pages_joined_are_the_whole_answer(tables, build, page_bytes):
    config = tables.create()
    for day in range(2, 9):
        tables.commit(files=[(f"d=2026-01-0{day}", rows) for rows in range(9)])
    answer = build(config)
    pages = list(answer.pages(staleness_ms=7, page_bytes=page_bytes))
    whole = answer.render(staleness_ms=7, max_message_bytes=1 << 20)
    assert b"".join(pages) == whole
    first = snapshot_pb2.GetSnapshotResponse.FromString(pages[0])
    assert (first.file_count, len(first.schema), first.staleness_ms) == (63, 2, 7)
    rest = [snapshot_pb2.GetSnapshotResponse.FromString(page) for page in pages[1:]]
    assert all(not page.table and page.files for page in rest)
    assert all(len(page) <= page_bytes for page in pages[1:]) or page_bytes == 1
    assert len(pages) == (64 if page_bytes == 1 else len(pages))


def test_urls_are_added_and_counted(tables, build, ask, clock):
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 1)] * 200)
    files = ask(config, presign_ms=60_000).files
    assert {file.presigned_url for file in files} == {f"memory://{f.path}?expires={clock.ms + 60_000}" for f in files}
    assert {value.name for value in files[0].partition_values} == {"d"}
    assert not ask(config).files[0].HasField("presigned_url")
    assert build(config, presign_ms=60_000).held_bytes > build(config).held_bytes


def test_a_condition_leaves_out_files_and_all_of_a_partition(tables, ask):
    config = tables.create(partition=("d=day(ts)",))
    tables.commit(files=[("d=2026-01-02", 5), ("d=2026-01-03", 7)])
    assert ask(config, where="ts >= '2026-01-03'").row_count == 7
    assert ask(config, where="ts >= '2026-01-03' OR event = 'a'").row_count == 12
    assert ask(config, where="ts > '2027-01-01'").file_count == 0


def test_a_condition_that_takes_too_much_work_keeps_the_files_that_are_left(tables, ask, monkeypatch):
    config = tables.create(partition=("d=day(ts)",))
    tables.commit(files=[(f"d=2026-01-{day:02d}", 1) for day in range(1, 31)])
    terms = " OR ".join(f"ts = '2027-01-{day:02d}'" for day in range(1, 20))
    assert ask(config, where=terms).file_count == 0
    monkeypatch.setattr(selection, "MAX_TESTS", 100)
    assert 20 < ask(config, where=terms).file_count < 30
    assert ask(config, where="ts > '2027-01-01'").file_count == 0


def make_answer(held_bytes):
    return Answer("t", b"", (b"x" * held_bytes,), 1, held_bytes)


def test_only_so_many_answers_and_bytes_are_kept():
    cache = AnswerCache(max_answers=3, max_bytes=100)
    for number in range(5):
        cache.keep((number,), make_answer(1))
    assert [cache.get((number,)) is not None for number in range(5)] == [False, False, True, True, True]
    cache.keep((5,), make_answer(50))
    cache.keep((6,), make_answer(50))
    assert [cache.get((number,)) is not None for number in range(7)] == [False] * 5 + [True, True]
    cache.keep((7,), make_answer(51))
    assert cache.get((7,)) is None
    cache.keep((5,), make_answer(10))
    cache.keep((8,), make_answer(40))
    assert cache.get((5,)) is not None


def test_answers_of_versions_that_are_gone_count_with_all_that_they_hold(tables, build):
    config = tables.create()
    cache = AnswerCache(max_answers=1000, max_bytes=20_000)
    held = []
    for version in range(20):
        tables.commit(files=[(f"d=2026-01-{day:02d}", 1) for day in range(2, 20)])
        answer = build(config)
        cache.keep((version,), answer)
        held.append(answer)
    kept = [answer for version, answer in enumerate(held) if cache.get((version,)) is not None]
    assert sum(len(piece.wire) for answer in kept for piece in answer.pieces) <= 20_000
    assert 0 < len(kept) < 20


def test_a_caller_that_goes_away_takes_no_answer_from_those_who_wait_for_it_too(tables, warehouse, clock):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 3)])
    cache = TableCache(warehouse, clock=clock, max_tables=9, wait_ms=1000, on_refresh=lambda _: None)
    state = cache.table("events").read(max_staleness_ms=0)

    async def read(_table, *, max_staleness_ms):
        return state

    async def ask():
        may_go_on = asyncio.Event()

        async def compute(function):
            await may_go_on.wait()
            return function()

        reads = SimpleNamespace(read=read, work=SimpleNamespace(run_compute=compute))
        access = SimpleNamespace(require=lambda *_: None)
        settings = SnapshotSettings(store="file:///unused")
        calls = SnapshotCalls(ServiceParts(warehouse, settings, SnapshotMetrics(), clock, reads, None, access))
        request = snapshot_pb2.GetSnapshotRequest(table="events")
        gone, waiting = (asyncio.ensure_future(calls.get_snapshot(request, None)) for _ in range(2))
        for _ in range(10):
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait((gone,))
        may_go_on.set()
        return await waiting

    assert snapshot_pb2.GetSnapshotResponse.FromString(asyncio.run(ask())).row_count == 3

"""Answers are serialized once for each version and pruned without being built anew."""

import pytest
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.tables.partition_filter import PartitionMatcher, parse_partition_filters
from icedb_proto import snapshot_pb2
from icedb_snapshot import answers
from icedb_snapshot.answers import AnswerCache, AnswerTooLarge


@pytest.fixture
def cache(store):
    return AnswerCache(store, max_tables=2)


@pytest.fixture
def ask(warehouse, clock, cache):
    def ask(config, *filters, limit=1 << 20, name="events"):
        paths = warehouse.table(name)
        snapshot = fold(LogReader(warehouse.store, paths, clock=clock).read())
        matcher = PartitionMatcher(parse_partition_filters(filters), config)
        body = cache.get(paths, snapshot).render(snapshot, matcher=matcher, staleness_ms=7, max_message_bytes=limit)
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
    with pytest.raises(AnswerTooLarge, match=r"limit of 4096 bytes.*partition filters"):
        ask(config, limit=4096)
    assert ask(config, "d=2026-01-03", limit=4096).file_count == 0


def test_a_file_is_serialized_once_in_its_life(tables, ask, monkeypatch):
    made = []
    serialize = answers._serialize_file
    monkeypatch.setattr(answers, "_serialize_file", lambda *args: (made.append(args[1].path), serialize(*args))[1])
    config = tables.create()
    tables.commit(files=[("d=2026-01-02", 1), ("d=2026-01-03", 1)])
    ask(config)
    ask(config, "d=2026-01-02")
    tables.commit(files=[("d=2026-01-02", 1)])
    assert ask(config).file_count == 3
    assert len(made) == len(set(made)) == 3


def test_only_some_versions_and_tables_are_kept(tables, ask, cache):
    config = tables.create()
    for _ in range(6):
        tables.commit(files=[("d=2026-01-02", 1)])
        ask(config)
    assert len(cache._tables["events"]) == answers.VERSIONS_PER_TABLE
    for name in ("a", "b"):
        ask(tables.create(name), name=name)
    assert list(cache._tables) == ["a", "b"]

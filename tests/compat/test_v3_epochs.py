"""A table of the original writer whose time is a BIGINT of milliseconds, as its README has it: adopted, and a whole life."""

from dataclasses import replace

import duckdb
import pytest
from icedb.cli.app import run
from icedb_client import Client
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.changes.retention import retain_table
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import SchemaConflict
from icedb_log.imports.imports import import_files
from icedb_log.jobs import SourceFile
from icedb_log.log.fold import fold
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.rebuild import rebuild_table
from icedb_log.repair.rebuild_plan import RebuildOptions
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.stored_config import read_table_config

DAY, NEXT = "u=a/d=2023-06-07", "u=a/d=2023-06-08"
EIGHT_MS = 1_686_124_800_000
"""2023-06-07T08:00:00Z."""
PARTITION = ("--partition", "u", "--partition", "d=day(ts)")


@pytest.fixture
def table(v3_table, tmp_path):
    class EpochTable(v3_table.V3Table):
        schema = {"u": "VARCHAR", "ts": "BIGINT", "n": "BIGINT"}
        time_sql = f"({EIGHT_MS} + n * 1000)::BIGINT"

        def time_of(self, number):
            return EIGHT_MS + number * 1000

    return EpochTable(tmp_path)


@pytest.fixture
def create(table, monkeypatch, capfd):
    """Runs ``icedb table create events`` and returns what it said."""

    def create(*arguments, code=0):
        monkeypatch.setenv("ICEDB_STORE", f"file://{table.store.root}")
        monkeypatch.setenv("COLUMNS", "1000")
        capfd.readouterr()
        found = run(["table", "create", "events", *arguments])
        said = capfd.readouterr()
        assert found == code, said
        if not code:  # the command works on the folder that mirrors the table's store
            table.store.put(table.paths.config_key, (table.store.root / table.paths.config_key).read_bytes())
        return said.out + said.err

    return create


def test_a_configuration_that_does_not_fit_the_log_is_refused_and_the_way_is_said(table, create):
    table.append(DAY, 1, 2)
    said = create(*PARTITION, code=2)
    assert "its log has column 'ts' as BIGINT" in said
    assert "this configuration as TIMESTAMP, for partition d=day(ts)" in said
    assert "--column with one of ts:epoch_s, ts:epoch_ms, ts:epoch_us" in said
    said = create(*PARTITION, "--column", "ts:epoch_s", code=2)
    assert "it counts epoch_ms: declare it with --column ts:epoch_ms" in said
    fits = (*PARTITION, "--column", "ts:epoch_ms")
    for given, words in (
        (fits[2:], "the configuration says d=…"),
        (("--partition", "u", "--partition", "d=hour(ts)", *fits[4:]), "'2023-06-07' is no hour"),
        (("--partition", "u", "--partition", "d=day(at)"), "needs 'at'"),
        (("--partition", "u", "--partition", "d=day(TS)"), "its log has column 'ts', and this configuration 'TS'"),
        ((*fits, "--column", "n:VARCHAR"), "'n' as BIGINT, and this configuration as VARCHAR: declare it as it is"),
        ((), "no partitions"),
    ):
        assert words in create(*given, code=2)
    assert not table.store.list_page(table.paths.config_key, limit=1).objects
    create(*fits, "--sort", "ts")
    assert read_table_config(table).times["ts"].unit == "epoch_ms"
    table.flush(3)
    assert table.numbers() == [1, 2, 3]


def test_a_log_that_cannot_be_read_is_no_obstacle_to_what_repairs_it(table, create):
    key = table.append(DAY, 1)[1]
    table.store.put(key, b"damaged")
    assert "cannot be read" in create(*PARTITION, "--column", "ts:epoch_ms")


def test_a_new_table_costs_one_listing_and_has_a_plausible_range(table, create):
    create("--partition", "d=day(ts)")
    time = read_table_config(table).times["ts"]
    assert (time.unit, time.describe_range()) == (None, "1990 to 2100")
    assert "is there already" in create("--partition", "d=day(ts)", "--if-not-exists")
    assert "another configuration" in create(
        "--partition", "d=day(ts)", "--plausible", "ts:off", "--if-not-exists", code=2
    )


def test_a_table_that_was_adopted_with_another_type_is_put_right(table, create, monkeypatch):
    table.append(DAY, 1, 2)
    table.adopt()  # as earlier releases did, unseen
    with pytest.raises(SchemaConflict, match=r"table alter events --column 'ts:BIGINT'.*epoch_ms"):
        table.flush(3)
    (table.store.root / table.paths.config_key).write_bytes(table.store.get(table.paths.config_key).body)
    monkeypatch.setenv("ICEDB_STORE", f"file://{table.store.root}")
    for option in ("ts:DATE", "ts:BIGINT"):
        assert run(["table", "alter", "events", "--column", option]) == 2
    assert run(["table", "alter", "events", "--column", "ts:epoch_ms"]) == 0
    table.store.put(table.paths.config_key, (table.store.root / table.paths.config_key).read_bytes())
    table.flush(4)
    assert table.numbers() == [1, 2, 3, 4]
    assert table.problems() == []


def test_a_whole_life(table, create, require_alike, tmp_path):
    inputs = [table.append(DAY, 1, 2), table.append(DAY, 3)]
    table.append(NEXT, 90_000)
    table.merge_as_v3(inputs, extra=", DATE '2023-06-07' AS d")
    create(*PARTITION, "--column", "ts:epoch_ms", "--sort", "ts", "--set", "data_grace=60s", "--set", "log_grace=30s")
    config = read_table_config(table)
    assert table.problems() == []

    table.flush(4, 5, 80_000)
    require_alike([1, 2, 3, 4, 5, 80_000, 90_000])
    assert {table.paths.partition_of(m.path) for m in fold(table.reader().read()).live} == {DAY, NEXT}
    assert table.merge(full=True).input_count == 4
    require_alike([1, 2, 3, 4, 5, 80_000, 90_000])
    assert table.delete("n = 3").rows_removed == 1

    # Pruning: by the path alone, and by statistics.
    live = fold(table.reader().read()).live
    of_day = [marker.path for marker in live if DAY in marker.path]
    for condition, kept in (
        (f"ts < {EIGHT_MS + 16 * 3_600_000}", of_day),
        (f"ts = {EIGHT_MS + 2000}", of_day),
        (f"ts >= {EIGHT_MS + 16 * 3_600_000}", [m.path for m in live if m.path not in of_day]),
        (f"ts > {EIGHT_MS + 40 * 3_600_000}", []),
    ):
        bare = [replace(marker, stats={}) for marker in live]
        for markers in (live, bare):
            assert [m.path for m in FilePruner(condition, config).select(markers)] == kept, condition
    with Client(store=f"file://{table.store.root}") as client:
        snapshot = client.snapshot("events", where=f"ts < {EIGHT_MS + 5000}")
        assert [file.path for file in snapshot.files] == of_day
        assert sorted(snapshot.to_arrow()["n"].to_pylist()) == [1, 2, 4]

    # Import: by footers alone, into the partition that the numbers say.
    duckdb.sql(f"COPY (SELECT 'a' AS u, {EIGHT_MS + 6000} AS ts, 6::BIGINT AS n) TO '{tmp_path}/one' (FORMAT parquet)")
    table.store.put("in/in.parquet", (tmp_path / "one").read_bytes())
    info = table.store.head("in/in.parquet")
    url = f"file://{table.store.root}"
    source = SourceFile(url, info.key, f"{url}/{info.key}", info.etag, info.size_bytes, info.modified_ms, is_named=True)
    importer = LocalEngine(table.store, clock=table.clock, sources=lambda _: table.store).importer
    assert table.work(import_files, importer, [source], owner="import").refused == []
    require_alike([1, 2, 4, 5, 6, 80_000, 90_000])

    # A log file that is lost: rebuilt from footers, with the partitions that the numbers say.
    table.merge(full=True)
    keys = list(table.store.dump("events/_log/"))
    table.store.put(keys[-1], b"damaged")
    table.clock.advance(table.grace_ms)
    options = RebuildOptions(take=("*",))
    table.work(rebuild_table, footers=ParquetFooterReader(table.store), owner="rebuild", options=options)
    require_alike([1, 2, 4, 5, 6, 80_000, 90_000])
    assert table.problems() == []
    removed = table.work(remove_partitions, lambda _, infos: {i.path for i in infos if i.path == NEXT}, owner="drop")
    assert len(removed.removed_paths) == 1
    require_alike([1, 2, 4, 5, 6])
    alter_table_config(table, {"retention_ms": 24 * 3_600_000}, clock=table.clock)
    table.clock.advance(24 * 3_600_000)
    assert table.work(retain_table, owner="retain").removal.removed_paths == ()
    table.clock.advance(24 * 3_600_000)
    assert len(table.work(retain_table, owner="retain").removal.removed_paths) == 1
    assert fold(table.reader().read()).live == ()

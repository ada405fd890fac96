"""Rows of random histories as engines of others read them, beside our own client's: the newest, and each that is left."""

import importlib.util
from collections import Counter

import pytest
from iceberg_engines import Engines
from iceberg_histories import History
from icedb_log.changes.row_changes import delete_rows
from pyiceberg.table import StaticTable


@pytest.fixture(scope="module")
def engines():
    return Engines()


CONDITIONS = {
    "id >= 500": ("id", lambda value: value is not None and value >= 500),
    "id = 99": ("id", lambda value: value == 99),
    "id IS NULL": ("id", lambda value: value is None),
    "p = 'ü/%=+'": ("p", lambda value: value == "ü/%=+"),
    "\"user\" > 'a b'": ("user", lambda value: value is not None and value.encode() > b"a b"),
    "ts < '2026-02-28T12:00:00'": ("ts", lambda value: value is not None and value < "2026-02-28T12:00:00"),
    "ts >= '2026-03-01T00:00:00'": ("ts", lambda value: value is not None and value >= "2026-03-01T00:00:00"),
    "flag = true": ("flag", lambda value: value is True),
}


def check(root, seed, engines, steps=14):
    history = History(root, seed)
    try:
        history.run(steps)
        return compare(history, engines)
    finally:
        history.close()


def compare(history, engines):
    """Compare the newest state, conditions on it, and each older state; return how many states there are."""
    seed = history.seed
    table = StaticTable.from_metadata(history.published)
    states = [
        (each, history.rows.get(each.summary.additional_properties.get("icedb.log"))) for each in table.snapshots()
    ]
    newest = states[-1][1] if states else Counter()
    if newest is not None:
        for name, rows in engines.newest(history.published):
            assert rows == newest, f"{name} of seed {seed}, {history.published}"
        for condition, (column, holds) in CONDITIONS.items() if states else ():
            if column not in table.schema().column_names:
                continue
            wanted = Counter({row: count for row, count in newest.items() if holds(dict(row).get(column))})
            for name, rows in engines.where(history.published, table, condition):
                assert rows == wanted, f"{name} of seed {seed} where {condition}, {history.published}"
            if not history.is_held_back():
                require_pruned(history, engines, table, condition, column)
    for snapshot, wanted in states:
        if wanted is None:
            continue
        for name, rows in engines.of_snapshot(history.published, table, snapshot):
            assert rows == wanted, f"{name} of snapshot {snapshot.snapshot_id} of seed {seed}, {history.published}"
    return len(states)


def require_pruned(history, engines, table, condition, column):
    """PyIceberg plans the data files that our client selects; DuckDB reads no others but those with nulls alone."""
    ours = {file.path.rpartition("/")[2] for file in history.client.snapshot("t", where=condition).files}
    planned = planned_of(table, condition)
    where = f"seed {history.seed} where {condition}, {history.published}"
    if any("bucket" in field for field in history.partition):  # ours is not Iceberg's, and is left out
        assert planned >= ours, where
    else:
        assert planned == ours, where
    assert engines.count_read_by_duckdb(history.published, condition) <= len(
        planned | planned_of(table, f'"{column}" IS NULL')
    ), where


def planned_of(table, condition):
    return {task.file.file_path.rpartition("/")[2] for task in table.scan(row_filter=condition).plan_files()}


@pytest.mark.parametrize("seed", range(4))
def test_every_engine_reads_what_our_client_reads(seed, tmp_path, engines):
    check(tmp_path, seed, engines)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_every_engine_reads_a_hundred_histories(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # chDB reads files below its working directory
    engines = Engines(more=importlib.util.find_spec("chdb") is not None)
    assert sum(check(tmp_path / str(seed), seed, engines) for seed in range(first, first + 100)) > 300  # states


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_engine_reads_ten_thousand_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = Engines(more=importlib.util.find_spec("chdb") is not None)
    history = History(tmp_path, 3000, partition=("t=truncate[1](id)",))
    try:
        for first in range(0, 10_000, 2_500):
            history.append(ids=range(first, first + 2_500))
            history.publish()
        assert len(history.client.snapshot("t").files) == 10_000
        history.work(delete_rows, history.engine.changer, '"id" < 300')
        history.append(ids=range(9_000, 9_500))
        history.merge()
        history.publish()
        assert compare(history, engines) > 4
    finally:
        history.close()

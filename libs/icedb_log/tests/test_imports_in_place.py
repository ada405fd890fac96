"""Files that are imported where they lie (N4)."""

import pytest
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.imports.imports import ImportOptions
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import try_each_call

IN_PLACE = ImportOptions(mode="in_place")


@pytest.fixture
def table():
    return ImportTable()


def test_in_place_files_become_live_where_they_lie(table):
    keys = [table.put_in_place("mine", 1, 2), table.put_in_place("yours", 3, p="b")]
    result = table.run_import(*keys, options=IN_PLACE)
    assert (result.file_count, table.ids()) == (2, [1, 2, 3])
    assert [marker.path for marker in table.snapshot().live] == keys
    assert table.states() == []
    assert table.run_import(*keys, options=IN_PLACE).imported_before_count == 2
    table.run_import(table.put_in_place("more", 4), options=IN_PLACE)
    table.merge(full=True)
    assert table.run_import(*table.keys(table.paths.data_prefix), options=IN_PLACE).imported_before_count == 4
    assert table.ids() == [1, 2, 3, 4]


def test_in_place_the_key_must_be_that_of_the_rows_partition(table):
    wrong = [
        table.put_in_place("w", 1, folder="p=b"),
        table.put_in_place("w", 1, folder="p=a/x"),
        table.put_in_place("w", 1, folder="sub/p=a"),
    ]
    good = table.put_in_place("g", 2)
    result = table.run_import(*wrong, good, options=IN_PLACE)
    assert table.ids() == [2]
    assert all("in place its key must be wh/t/_data/p=a/w.parquet" in each.reason for each in result.refused)
    assert len(result.refused) == 3
    with pytest.raises(InvalidRequest, match="does not lie below"):
        table.run_import(table.put_source("x", 1), options=IN_PLACE)


def test_in_place_old_files_are_refused_because_the_sweep_may_be_deleting_them(table):
    old = table.put_in_place("old", 1)
    table.clock.advance(table.config.orphan_age_ms // 2 + 1)
    young = table.put_in_place("young", 2)
    result = table.run_import(old, young, options=IN_PLACE)
    assert table.ids() == [2]
    assert "half the table's orphan age" in result.refused[0].reason


def test_in_place_w3_counts_the_age_of_the_file_and_the_time_since(table):
    key = table.put_in_place("x", 1)
    half_ms = table.config.orphan_age_ms // 2
    table.clock.advance(half_ms - 10_000)
    table.store.script = [Fault("put_if_match", None, "/fence/", before=lambda: table.clock.advance(10_001))]
    with pytest.raises(Unavailable, match="orphan age"):
        table.run_import(key, options=IN_PLACE)
    assert table.ids() == []


def test_in_place_a_file_that_changes_or_goes_is_refused(table):
    keys = [table.put_in_place("changes", 1), table.put_in_place("goes", 2), table.put_in_place("stays", 3)]

    def others():
        table.store.inner.put(keys[0], encode_rows([{"id": 9, "p": "a"}]))
        table.store.inner.delete([keys[1]])

    table.store.script = [Fault("put_if_absent", None, "/fence/", before=others)]
    result = table.run_import(*keys, options=IN_PLACE)
    assert table.ids() == [3]
    assert sorted(each.reason.partition(":")[0] for each in result.refused) == [
        "it changed after its footer was read",
        "it is gone",
    ]


def test_in_place_two_imports_of_the_same_files_at_once(table):
    keys = [table.put_in_place("x", 1), table.put_in_place("y", 2)]
    rival = ImportTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    table.store.script = [Fault("get", None, "/fence/", before=lambda: rival.run_import(*keys, options=IN_PLACE))]
    result = table.run_import(*keys, options=IN_PLACE)
    assert (result.file_count, result.imported_before_count, table.ids()) == (0, 2, [1, 2])


def test_in_place_what_was_merged_and_vacuumed_meanwhile_is_not_made_live_again(table):
    keys = [table.put_in_place("x", 1), table.put_in_place("y", 2)]

    def others():
        rival = ImportTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock
        rival.run_import(*keys, options=IN_PLACE)
        rival.merge(full=True)
        table.clock.advance(85_000)
        rival.vacuum()
        rival.vacuum()

    table.store.script = [Fault("get", None, "/fence/", before=others)]
    result = table.run_import(*keys, options=IN_PLACE)
    assert table.ids() == [1, 2]
    assert result.file_count == 0


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.UNAVAILABLE, Effect.LOSE_ANSWER])
def test_in_place_whatever_fails_the_next_run_imports_each_file_once(effect):
    def make():
        table = ImportTable()
        table.put_in_place("x", 1)
        table.put_in_place("y", 2, p="b")
        return table

    def act(table):
        table.run_import(*table.keys(table.paths.data_prefix), options=IN_PLACE)

    for number, table in enumerate(try_each_call(make, act, effect)):
        act(table)
        assert table.ids() == [1, 2], f"{effect} at call {number}"

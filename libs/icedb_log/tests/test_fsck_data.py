"""``icedb fsck``: damage of data files and their footers, and exactly that is found."""

import contextlib
from collections.abc import Callable

import pytest
from icedb_log.commit.table import Table
from icedb_log.holds.tags import create_tag
from icedb_log.repair.fsck_data import Inspection, Walk, find_partition_problem
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import encode_table_config
from icedb_log.table.table_config import PartitionField
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.fsck_tables import (
    check,
    codes,
    codes_after,
    data_file,
    edit_marker,
    last_append,
    logs,
    rewrite_data,
    small,
)
from icedb_sim.tables.small_table import SmallTable

Damage = Callable[[SmallTable], object]


def lose_log(table: SmallTable) -> None:
    table.store.delete(table.keys(table.paths.log_prefix))


def lose_live(table: SmallTable) -> None:
    table.store.delete([data_file(table, last_append(table))])


def lose_dead(table: SmallTable) -> None:
    table.store.delete([data_file(table, logs(table)[0])])


def old_orphan(table: SmallTable) -> None:
    table.store.put(table.paths.data_key(partition="p=a", file_id="lost"), b"{}")
    table.clock.advance(table.config.orphan_age_ms)


def resized(table: SmallTable) -> None:
    path = data_file(table, last_append(table))
    table.store.put(path, table.store.get(path).body.replace(b"\n#", b"\n\n#"))


def no_config(table: SmallTable) -> None:
    table.store.delete([table.paths.config_key])


def broken_config(table: SmallTable) -> None:
    table.store.put(table.paths.config_key, b'{"name": 7}')


def config_of_another(table: SmallTable) -> None:
    config = table.config.model_copy(update={"name": "other"})
    table.store.put(table.paths.config_key, encode_table_config(config))


def config_of_other_partitions(table: SmallTable) -> None:
    config = table.config.model_copy(update={"partition": (PartitionField(name="q", column="p"),)})
    table.store.put(table.paths.config_key, encode_table_config(config))


def config_of_other_columns(table: SmallTable) -> None:
    config = table.config.model_copy(update={"partition": (PartitionField(name="p", column="q"),)})
    table.store.put(table.paths.config_key, encode_table_config(config))


def config_of_other_types(table: SmallTable) -> None:
    config = table.config.model_copy(update={"declared": {"id": "VARCHAR"}})
    table.store.put(table.paths.config_key, encode_table_config(config))


# --- footers --------------------------------------------------------------------------------------------------------


def broken_footer(table: SmallTable) -> None:
    rewrite_data(table, data_file(table, last_append(table)), lambda body: b"\0" * len(body))


def wrong_count(table: SmallTable) -> None:
    edit_marker(table, last_append(table), row_count=5)


def wrong_partition(table: SmallTable) -> None:
    rewrite_data(table, data_file(table, last_append(table)), lambda body: body.replace(b'"p=b"', b'"p=a"'))


def wrong_type(table: SmallTable) -> None:
    rewrite_data(table, data_file(table, last_append(table)), lambda body: body.replace(b'"p":"b"', b'"p":123'))


def unknown_column(table: SmallTable) -> None:
    rewrite_data(table, data_file(table, last_append(table)), lambda body: body.replace(b'"id":6', b'"xx":6'))


def path_column(table: SmallTable) -> None:
    """As other writers' merges leave it: named like a field of the path, and not in the schema."""
    rewrite_data(table, data_file(table, last_append(table)), lambda body: body.replace(b'"p":"b"', b'"P":"b"'))


def rows_twice(table: SmallTable) -> None:
    """A backup of the log file of an input came back after the merge had been vacuumed."""
    key = logs(table)[0]
    body, data = table.store.get(key).body, table.store.get(data_file(table, key)).body
    path = data_file(table, key)
    table.clock.advance(table.config.log_grace_ms)
    table.vacuum()
    table.clock.advance(table.config.data_grace_ms)
    table.vacuum()
    assert key not in logs(table)
    table.store.put(path, data)
    table.store.put(key, body)


def narrow_statistics(table: SmallTable) -> None:
    edit_marker(table, last_append(table), stats={"id": (6, 6, 0), "p": ("c", "c", 0)})


def wrong_nulls(table: SmallTable) -> None:
    edit_marker(table, last_append(table), stats={"id": (6, 6, 3)})


DAMAGES: list[tuple[str, Damage]] = [
    ("log-lost", lose_log),
    ("dangling", lose_live),
    ("dangling-dead", lose_dead),
    ("orphan", old_orphan),
    ("size-mismatch", resized),
    ("config-unreadable", no_config),
    ("config-unreadable", broken_config),
    ("config-mismatch", config_of_another),
    ("config-mismatch", config_of_other_partitions),
    ("config-mismatch", config_of_other_columns),
    ("config-mismatch", config_of_other_types),
    ("footer-unreadable", broken_footer),
    ("row-count-mismatch", wrong_count),
    ("partition-mismatch", wrong_partition),
    ("type-mismatch", wrong_type),
    ("type-mismatch", unknown_column),
    ("path-column", path_column),
    ("input-still-live", rows_twice),
    ("statistics-mismatch", narrow_statistics),
    ("statistics-mismatch", wrong_nulls),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found_and_nothing_else(code: str, damage: Damage) -> None:
    assert codes_after(damage) == set(code.split())


def test_all_are_counted_and_some_are_listed() -> None:
    table = small()
    for key in list_all(table.store, table.paths.data_prefix).objects:
        table.store.put(key.key, b"")
    report = check(table, max_listed=2)
    (counted,) = [each for each in report.counts if each.code == "size-mismatch"]
    assert counted.count == 3
    assert len([each for each in report.findings if each.code == "size-mismatch"]) == 2


def test_a_sample_of_footers() -> None:
    table = small()
    assert check(table, sample=2).figures["footers"] == 2
    assert check(table, sample=99).figures["footers"] == 3
    assert check(table, deep=False).figures["footers"] == 0


def test_footers_without_an_answer_are_told() -> None:
    table = small()
    table.store.script = [Fault("get", Effect.UNAVAILABLE, data_file(table, last_append(table)))]
    assert codes(check(table)) == {"not-checked"}


def test_young_unnamed_files_are_a_note() -> None:
    table = small()
    table.store.put(table.paths.data_key(partition="p=a", file_id="lost"), b"{}")
    report = check(table)
    assert codes(report) == set()
    assert codes(report, "note") == {"orphan"}


def test_files_of_others_are_notes() -> None:
    table = small()
    table.store.put(f"{table.paths.prefix}/README.md", b"x")
    table.store.put(f"{table.paths.data_prefix}p=a/notes.txt", b"x")
    report = check(table)
    assert codes(report) == set()
    assert [each.key for each in report.findings if each.code == "unknown-object"] == [
        f"{table.paths.prefix}/README.md",
        f"{table.paths.data_prefix}p=a/notes.txt",
    ]


def test_old_rows_beside_a_marker_without_counts() -> None:
    """Log files of other v3 writers say nothing of rows: nothing to compare."""
    table = small()
    edit_marker(table, last_append(table), row_count=None)
    report = check(table)
    assert codes(report) == set()
    assert report.figures["live_rows"] == 5


def test_a_lost_log_is_an_error() -> None:
    table = small()
    lose_log(table)
    assert codes(check(table), "error") == {"log-lost"}


def test_a_first_commit_that_was_cut_off_is_no_lost_log_for_certain() -> None:
    table = SmallTable(has_footers=True)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, table.paths.log_prefix)]
    with contextlib.suppress(Crash):
        table.append(1)
    report = check(table)
    assert codes(report, "error") == set()
    assert codes(report, "warning") == {"log-lost"}


def test_a_tag_of_an_empty_table_is_no_proof_that_its_log_is_lost() -> None:
    table = SmallTable(has_footers=True)
    create_tag(Table.open(table, clock=table.clock), "empty")
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, table.paths.log_prefix)]
    with contextlib.suppress(Crash):
        table.append(1)
    report = check(table)
    assert codes(report, "error") == set()
    assert codes(report, "warning") == {"log-lost"}


def test_a_file_that_goes_while_footers_are_read_is_lost() -> None:
    table = small()
    path = data_file(table, last_append(table))
    table.store.script = [Fault("get", None, path, before=lambda: table.store.inner.delete([path]))]
    assert codes(check(table)) == {"dangling"}


def test_a_sort_column_that_no_row_has_is_no_damage() -> None:
    table = small(sort=("never",))
    assert codes(check(table)) == set()


def test_partition_values_are_those_of_their_transforms() -> None:
    fields = {
        transform: PartitionField(name="f", column="c", transform=transform)
        for transform in ("year", "month", "day", "hour", "identity")
    }
    fields["bucket"] = PartitionField(name="f", column="c", transform="bucket", width=8)
    good = {
        "year": "2026",
        "month": "2026-01",
        "day": "2026-01-02",
        "hour": "2026-01-02-03",
        "identity": "_",
        "bucket": "7",
    }
    for transform, field in fields.items():
        assert find_partition_problem(f"f={good[transform]}", (field,)) is None
        assert (find_partition_problem("f=x", (field,)) is None) == (transform == "identity")
        assert find_partition_problem("g=1", (field,)) is not None
        assert find_partition_problem("", (field,)) is not None
        assert find_partition_problem("x", (field,)) is not None
    assert find_partition_problem("f=8", (fields["bucket"],)) is not None
    assert find_partition_problem("f=2026-01-02", (fields["hour"],)) is not None
    assert find_partition_problem("", ()) is None


def test_of_many_paths_those_outside_of_what_was_listed_are_looked_at_or_not_called_missing(monkeypatch):
    table = small()
    monkeypatch.setattr("icedb_log.repair.fsck_data.MAX_LOOKS", 1)
    seen = Inspection(table, None, None, None, Walk(f"{table.paths.prefix}/"), None, 1)
    inside = [table.paths.data_key(partition="p=a", file_id=f"0{number}") for number in range(2)]
    assert seen.still_missing({*inside, "zz/_data/1.parquet"}) == inside

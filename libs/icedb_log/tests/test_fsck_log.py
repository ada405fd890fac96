"""``icedb fsck``: damage of the log is made in a real small table, and exactly that is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from icedb_log.commit.fence import seal
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.state import LogState
from icedb_log.merge.log_folding import listing_twice
from icedb_log.model import FileMarker, LogFile, Widening
from icedb_sim.tables.fsck_tables import (
    append_log,
    check,
    codes,
    codes_after,
    data_file,
    edit,
    edit_bytes,
    edit_marker,
    last_append,
    logs,
    small,
)
from icedb_sim.tables.small_table import SmallTable

HOUR_MS = 60 * 60 * 1000

Damage = Callable[[SmallTable], object]


def malformed(table: SmallTable) -> None:
    edit_bytes(table, last_append(table), b'"f":2', b'"f":9')


def too_new(table: SmallTable) -> None:
    edit_bytes(table, last_append(table), b'"v":1', b'"v":2')


def wire(table: SmallTable) -> None:
    """Our decoder takes the last of two; another reader may take the first."""
    edit_bytes(table, last_append(table), b'"b":', b'"b":7,"b":')


def type_twice(table: SmallTable) -> None:
    edit_bytes(table, last_append(table), b'{"id":"BIGINT"', b'{"id":"DOUBLE","id":"BIGINT"')


def version_as_text(table: SmallTable) -> None:
    edit_bytes(table, last_append(table), b'"v":1', b'"v":"1"')


def wire_name_of_another_section(table: SmallTable) -> None:
    """`sch` means nothing in a marker, and Go ignores case."""
    edit_bytes(table, last_append(table), b'"b":', b'"sCH":5,"b":')


def misnamed(table: SmallTable) -> None:
    table.store.put(f"{table.paths.log_prefix}lock", b"")


def nested_log(table: SmallTable) -> None:
    key = last_append(table)
    table.store.put(f"{table.paths.log_prefix}old/{key.rpartition('/')[2]}", table.store.get(key).body)


def stray(table: SmallTable) -> None:
    table.store.put(f"{table.paths.prefix}/_log_backup/x", b"")


def long_log(table: SmallTable) -> None:
    for number in range(500):
        append_log(table, LogFile(time_ms=table.clock.now_ms(), commit_id=f"{number:04x}"))


def skewed(table: SmallTable) -> None:
    time_ms = table.clock.now_ms() + HOUR_MS
    append_log(table, LogFile(time_ms=time_ms, commit_id="0a"))


def future_tombstone(table: SmallTable) -> None:
    key = logs(table, merged=True)[0]
    edit(
        table,
        key,
        lambda log: replace(
            log,
            log_tombstones=tuple(replace(t, landed_ms=table.clock.now_ms() + HOUR_MS) for t in log.log_tombstones),
        ),
    )


def future_horizon(table: SmallTable) -> None:
    edit(table, last_append(table), lambda log: replace(log, horizon_ms=table.clock.now_ms() + HOUR_MS))


def copied_log(table: SmallTable) -> None:
    """Somebody restored a dead log file under another name: of one commit, all its markers are dead elsewhere."""
    log = decode_log_file(logs(table)[0], table.store.get(logs(table)[0]).body)
    table.store.put(table.paths.log_key(time_ms=log.time_ms, commit_id="0c", is_merged=False), encode_log_file(log))


def batch_twice(table: SmallTable) -> None:
    first = decode_log_file(logs(table)[0], table.store.get(logs(table)[0]).body)
    edit(table, last_append(table), lambda log: replace(log, batch_ids=first.batch_ids))


def refused_and_committed(table: SmallTable) -> None:
    first = decode_log_file(logs(table)[0], table.store.get(logs(table)[0]).body)
    edit(table, last_append(table), lambda log: replace(log, refused_ids=first.batch_ids))


def wrong_order(table: SmallTable) -> None:
    """The merge was named before its inputs, as by a worker whose clock is slow."""
    key = logs(table, merged=True)[0]
    log = decode_log_file(key, table.store.get(key).body)
    table.store.delete([key])
    append_log(table, replace(log, time_ms=log.time_ms - 10_000), merged=True)


def loses_live(table: SmallTable) -> None:
    """A merge that does not carry a live marker of a log file that it replaces."""
    key, victim = logs(table, merged=True)[0], last_append(table)
    tombstone = decode_log_file(key, table.store.get(key).body).log_tombstones[0]
    edit(table, key, lambda log: replace(log, log_tombstones=(*log.log_tombstones, replace(tombstone, path=victim))))


def forgets_tombstone(table: SmallTable) -> None:
    """The merge was merged again, without the tombstone of one input, while a log file still lists it as live."""
    key = logs(table, merged=True)[0]
    log = decode_log_file(key, table.store.get(key).body)
    dead = next(marker for marker in log.markers if not marker.is_live)
    live = [replace(marker, tombstoned_ms=None) if marker is dead else marker for marker in log.markers]
    now_ms = table.clock.now_ms()
    own = replace(log.log_tombstones[0], path=key, tombstoned_ms=now_ms)
    append_log(
        table,
        replace(log, time_ms=now_ms, commit_id="0d", markers=tuple(live), log_tombstones=(*log.log_tombstones, own)),
        merged=True,
    )


def listed_twice(table: SmallTable) -> None:
    edit(table, last_append(table), lambda log: replace(log, markers=(*log.markers, *log.markers)))


def listed_by_two(table: SmallTable) -> None:
    log = decode_log_file(last_append(table), table.store.get(last_append(table)).body)
    append_log(table, LogFile(time_ms=table.clock.now_ms(), commit_id="0e", schema=log.schema, markers=log.markers))


def listed_differently(table: SmallTable) -> None:
    edit(
        table,
        last_append(table),
        lambda log: replace(log, markers=(*log.markers, replace(log.markers[0], row_count=77))),
    )


def two_types(table: SmallTable) -> None:
    edit_bytes(table, last_append(table), b'"id":"BIGINT"', b'"id":"bigint"')


def lost_column(table: SmallTable) -> None:
    """A column that a dead log file alone names."""
    edit(table, logs(table)[0], lambda log: replace(log, schema={**log.schema, "x": "BIGINT"}))


def wide_sort_column(table: SmallTable) -> None:
    for key in logs(table, merged=True) + logs(table):
        edit(table, key, lambda log: replace(log, widened={"id": Widening("DOUBLE", 1)}))


def outside(table: SmallTable) -> None:
    """A marker of another table's file. (The data file is there: nothing else is wrong.)"""
    body = table.store.get(data_file(table, last_append(table))).body
    table.store.put("wh/other/_data/p=b/f.parquet", body)
    edit_marker(table, last_append(table), path="wh/other/_data/p=b/f.parquet")


def odd_characters(table: SmallTable) -> None:
    path = data_file(table, last_append(table))
    other = path.replace("p=b", "p=b c")
    table.store.put(other, table.store.get(path).body)
    edit_marker(table, last_append(table), path=other)


def dead_seal(table: SmallTable) -> None:
    key = table.paths.log_key(time_ms=table.clock.now_ms(), commit_id="5e", is_merged=False)
    seal(table.store, key)
    merge = logs(table, merged=True)[0]
    tombstone = decode_log_file(merge, table.store.get(merge).body).log_tombstones[0]
    edit(table, merge, lambda log: replace(log, log_tombstones=(*log.log_tombstones, replace(tombstone, path=key))))


DAMAGES: list[tuple[str, Damage]] = [
    ("log-malformed", malformed),
    ("log-malformed", too_new),
    ("wire", wire),
    ("wire", type_twice),
    ("wire", version_as_text),
    ("log-malformed", wire_name_of_another_section),
    ("log-misnamed", misnamed),
    ("log-misnamed", nested_log),
    ("stray-below-log", stray),
    ("log-count", long_log),
    ("clock-skew", skewed),
    ("tombstone-time", future_tombstone),
    ("horizon", future_horizon),
    ("commit-not-unique double-listing", copied_log),
    ("batch-twice", batch_twice),
    ("batch-twice", refused_and_committed),
    ("marker-order", wrong_order),
    ("marker-not-carried", loses_live),
    ("marker-not-carried marker-order", forgets_tombstone),
    ("double-listing", listed_twice),
    ("double-listing", listed_by_two),
    ("double-listing row-count-mismatch", listed_differently),
    ("schema-conflict", two_types),
    ("schema-not-carried", lost_column),
    ("widening", wide_sort_column),
    ("foreign-path", outside),
    ("foreign-path partition-mismatch", odd_characters),
    ("seal", dead_seal),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found_and_nothing_else(code: str, damage: Damage) -> None:
    assert codes_after(damage) == set(code.split())


def test_a_schema_conflict_is_told_with_both_types_and_log_files() -> None:
    table = small()
    two_types(table)
    (finding,) = [each for each in check(table).findings if each.code == "schema-conflict"]
    assert "BIGINT" in finding.message
    assert f"bigint in {last_append(table)}" in finding.message


@pytest.mark.parametrize("damage", [listed_twice, listed_by_two, copied_log])
def test_a_full_merge_leaves_one_marker_of_a_file_that_is_listed_twice(damage: Damage) -> None:
    """The remedy of ``double-listing``, also in a partition where there is nothing to merge."""
    table = small()
    damage(table)
    before = table.ids()
    assert "double-listing" in codes(check(table))
    assert table.merge(full=True).committed_key
    assert codes(check(table)) <= {"commit-not-unique"}, "until the janitor has deleted the folded log files"
    assert table.ids() == before
    assert table.merge(full=True).committed_key is None, "there is nothing left to do"


def test_lists_that_disagree_are_settled_by_a_rebuild_that_asks_the_files() -> None:
    table = small()
    before = table.ids()
    listed_differently(table)
    assert listing_twice(LogState.of(table.view()).active_files()) == frozenset(), "no fold chooses one for that"
    assert table.rebuild(is_forced=True).has_committed
    assert codes(check(table), "error") == set()
    assert "double-listing" not in codes(check(table))
    assert table.ids() == before


@pytest.mark.parametrize(("damage", "severity"), [(listed_by_two, "warning"), (listed_differently, "error")])
def test_lists_that_disagree_are_worse_than_those_that_agree(damage: Damage, severity: str) -> None:
    table = small()
    damage(table)
    (finding,) = [each for each in check(table).findings if each.code == "double-listing"]
    assert finding.severity == severity
    assert ("another size or number of rows" in finding.message) == (severity == "error")


def test_a_widening_that_dead_log_files_alone_know_is_told() -> None:
    table = small()
    edit(table, logs(table)[0], lambda log: replace(log, widened={"id": Widening("DOUBLE", 1)}))
    found = {each.code: each.message for each in check(table).findings}
    assert found["schema-not-carried"] == "dead log files alone say that column 'id' is wider"
    assert "widening" in found


def test_the_first_of_several_tombstones_from_the_future_is_named() -> None:
    table = small()
    future_tombstone(table)
    (finding,) = [each for each in check(table).findings if each.code == "tombstone-time"]
    log = decode_log_file(finding.key, table.store.get(finding.key).body)
    assert finding.message.startswith(f"{len(log.log_tombstones)} tombstones")
    assert f"the first is {log.log_tombstones[0].path}: " in finding.message


def test_one_damaged_log_file_hides_no_other_damage() -> None:
    table = small()
    first, last = logs(table)[0], last_append(table)
    edit_bytes(table, first, b'"f":2', b'"f":9')
    edit_bytes(table, last, b'"b":', b'"b":-')
    resized_path = data_file(table, logs(table)[-2])
    table.store.put(resized_path, table.store.get(resized_path).body + b"\n")
    report = check(table)
    assert {each.key for each in report.findings if each.code == "log-malformed"} == {first, last}
    assert codes(report, "error") == {"log-malformed", "size-mismatch"}
    assert codes(report, "note") == {"not-checked"}  # a file that a damaged log file names is no orphan


def test_a_line_that_is_damaged_is_told_with_its_number() -> None:
    table = small()
    edit_bytes(table, last_append(table), b'"b":', b'"b":-')
    (finding,) = [each for each in check(table).findings if each.severity == "error"]
    assert finding.line == 2


def test_wire_problems_are_listed_line_by_line() -> None:
    table = small()
    marker = FileMarker("wh/t/_data/p=b/../x.parquet", 1, 1, row_count=1)
    edit(table, last_append(table), lambda log: replace(log, markers=(*log.markers, marker, marker)))
    lines = [each.line for each in check(table, deep=False).findings if each.code == "foreign-path"]
    assert lines == [3, 4]


def test_a_thousand_log_files_are_an_error() -> None:
    table = small()
    for number in range(1000):
        append_log(table, LogFile(time_ms=table.clock.now_ms(), commit_id=f"{number:04x}"))
    assert codes(check(table, deep=False), "error") == {"log-count"}

"""Every code of ``icedb fsck``: the damage is made in a real small table, and exactly that is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from icedb_log.cleaning.pin_creation import create_pin
from icedb_log.erasure.erasures import create_erasure
from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fence import seal
from icedb_log.model import FileMarker, LogFile
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_codes import CODES
from icedb_log.repair.fsck_report import FsckReport
from icedb_log.storage.object_store import list_all
from icedb_log.tables.table_config import PartitionField, encode_table_config
from icedb_log.testing.row_footers import RowFooterReader
from icedb_log.testing.scripted_store import Effect, Fault
from icedb_log.testing.small_table import SmallTable
from icedb_log.testing.small_view import SmallView

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
DOCS = Path(__file__).parents[3] / "docs"

Damage = Callable[[SmallTable], object]


def check(table: SmallTable, paths: TablePaths | None = None, *, deep: bool = True, **options: object) -> FsckReport:
    """Check a table without threads, so that calls come in one order."""
    footers = RowFooterReader(table.store) if deep else None
    return fsck_table(
        table.store,
        paths or table.paths,
        clock=table.clock,
        options=FsckOptions(footers=footers, fetch_threads=1, **options),
    )


def codes(report: FsckReport, *severities: str) -> set[str]:
    """Return the codes found; by default without notes."""
    return {each.code for each in report.counts if each.severity in (severities or ("error", "warning"))}


def small(**config: object) -> SmallTable:
    """A table with two appends and a merge of three others; the inputs of the merge are dead."""
    table = SmallTable(has_footers=True, merge_fan_in=3, **config)
    for number in (1, 2, 3):
        table.append(number)
    assert table.merge().committed_key
    table.append(4, 5)
    table.append(6, p="b")
    return table


def logs(table: SmallTable, *, merged: bool = False) -> list[str]:
    """Return the keys of the log files of appends, or of merges."""
    return [key for key in table.keys(table.paths.log_prefix) if ("_m_" in key) == merged]


def last_append(table: SmallTable) -> str:
    """Return the log file of the last append: nothing in it is dead."""
    return logs(table)[-1]


def edit(table: SmallTable, key: str, change: Callable[[LogFile], LogFile]) -> None:
    """Rewrite a log file."""
    log = change(decode_log_file(key, table.store.get(key).body))
    table.store.put(key, encode_log_file(log))


def edit_marker(table: SmallTable, key: str, **fields: object) -> None:
    """Change the first marker of a log file."""
    edit(table, key, lambda log: replace(log, markers=(replace(log.markers[0], **fields), *log.markers[1:])))


def edit_bytes(table: SmallTable, key: str, old: bytes, new: bytes) -> None:
    """Replace bytes of an object."""
    body = table.store.get(key).body
    assert old in body
    table.store.put(key, body.replace(old, new, 1))


def append_log(table: SmallTable, log: LogFile, *, merged: bool = False) -> str:
    """Put one more log file there."""
    key = table.paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id or "0f", is_merged=merged)
    table.store.put(key, encode_log_file(log))
    return key


def data_file(table: SmallTable, key: str) -> str:
    """Return the first data file that a log file lists."""
    return decode_log_file(key, table.store.get(key).body).markers[0].path


def rewrite_data(table: SmallTable, path: str, change: Callable[[bytes], bytes]) -> None:
    """Write other bytes of the same length over a data file."""
    body = table.store.get(path).body
    changed = change(body)
    assert len(changed) == len(body)
    table.store.put(path, changed)


# --- the log --------------------------------------------------------------------------------------------------------


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
        edit(table, key, lambda log: replace(log, widened={"id": "DOUBLE"}))


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


# --- data files -----------------------------------------------------------------------------------------------------


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


# --- state ----------------------------------------------------------------------------------------------------------


def future_object(table: SmallTable) -> None:
    """An object that was written before the store's clock jumped back. (The store in memory is told so.)"""
    key = last_append(table)
    inner = table.store.inner
    stored = inner._objects[key]
    info = replace(stored.info, modified_ms=stored.info.modified_ms + HOUR_MS)
    inner._objects[key] = replace(stored, info=info)


def host_clock(table: SmallTable) -> None:
    wrong = replace_clock(table, HOUR_MS)
    table.clock = wrong


def replace_clock(table: SmallTable, ahead_ms: int) -> object:
    class Ahead:
        def __getattr__(self, name: str) -> object:
            return getattr(table_clock, name)

        def now_ms(self) -> int:
            return table_clock.now_ms() + ahead_ms

    table_clock = table.clock
    return Ahead()


def no_fence(table: SmallTable) -> None:
    table.store.delete([table.paths.fence_key("merge")])


def broken_fence(table: SmallTable) -> None:
    table.store.put(table.paths.fence_key("merge"), b"not a fence")


def foreign_intent(table: SmallTable) -> None:
    fence = orjson.loads(table.store.get(table.paths.fence_key("merge")).body)
    table.store.put(table.paths.fence_key("merge"), orjson.dumps({**fence, "commit": "wh/other/_log/x"}))


def other_incarnation(table: SmallTable) -> None:
    fence = orjson.loads(table.store.get(table.paths.fence_key("merge")).body)
    table.store.put(table.paths.fence_key("merge"), orjson.dumps({**fence, "incarnation": "another"}))


def unknown_staging(table: SmallTable) -> None:
    table.store.put(f"{table.paths.staging_prefix}notes.txt", b"x")


def old_staging(table: SmallTable) -> None:
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(2 * HOUR_MS)


def quarantine_alone(table: SmallTable) -> None:
    batch_id = table.stage([{"id": 1, "p": "a"}])
    table.store.put(table.paths.quarantine_key(f"{batch_id}.batch.ndjson"), b"{}")
    table.flush()
    table.clock.advance(2 * HOUR_MS)


def quarantine_garbled(table: SmallTable) -> None:
    batch_id = table.stage([{"id": 1, "p": "a"}])
    table.store.put(table.paths.quarantine_key(f"{batch_id}.json"), b"why?")
    table.flush()


def broken_lease(table: SmallTable) -> None:
    table.store.put(table.paths.lease_key("00"), b"for ever")


def broken_pin(table: SmallTable) -> None:
    table.store.put(table.paths.pin_key("q3", "0" * 32), b"for ever")


def pin_lost_file(table: SmallTable) -> None:
    """A dead file that a pin holds went, long after it died."""
    table.append(7)
    create_pin(table.store, table.paths, name="q3", clock=table.clock, ttl_ms=None)
    path = data_file(table, last_append(table))
    table.append(8)
    table.append(9)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + 10_000)
    table.store.delete([path])


def broken_registration(table: SmallTable) -> None:
    view = SmallView(table)
    table.store.put(table.paths.view_key(view.paths.name), b"{}")


def pending_registration(table: SmallTable) -> None:
    view = SmallView(table)
    value = orjson.loads(table.store.get(table.paths.view_key(view.paths.name)).body)
    table.store.put(table.paths.view_key(view.paths.name), orjson.dumps({**value, "state": "pending"}))
    table.clock.advance(2 * HOUR_MS)


def broken_import(table: SmallTable) -> None:
    table.store.put(table.paths.import_key("00"), b"{}")


def erasure(table: SmallTable) -> None:
    create_erasure(table.store, table.paths, condition="id = 1", clock=table.clock)
    table.clock.advance(3 * DAY_MS)


def broken_erasure(table: SmallTable) -> None:
    table.store.put(table.paths.open_erasure_key("01900000-0000-7000-8000-000000000000"), b"{}")


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
    ("dangling", lose_live),
    ("dangling-dead", lose_dead),
    ("orphan", old_orphan),
    ("size-mismatch", resized),
    ("config-unreadable", no_config),
    ("config-unreadable", broken_config),
    ("config-mismatch", config_of_another),
    ("config-mismatch", config_of_other_partitions),
    ("config-mismatch", config_of_other_types),
    ("footer-unreadable", broken_footer),
    ("row-count-mismatch", wrong_count),
    ("partition-mismatch", wrong_partition),
    ("type-mismatch", wrong_type),
    ("type-mismatch", unknown_column),
    ("input-still-live", rows_twice),
    ("statistics-mismatch", narrow_statistics),
    ("statistics-mismatch", wrong_nulls),
    ("store-clock", future_object),
    ("store-clock", host_clock),
    ("fence-missing", no_fence),
    ("fence-unreadable", broken_fence),
    ("fence-unreadable", foreign_intent),
    ("fence-unreadable", other_incarnation),
    ("staging-unknown", unknown_staging),
    ("staging-old", old_staging),
    ("quarantine-without-reason", quarantine_alone),
    ("quarantine-without-reason", quarantine_garbled),
    ("lease", broken_lease),
    ("pin", broken_pin),
    ("pin", pin_lost_file),
    ("view-registration", broken_registration),
    ("view-registration", pending_registration),
    ("import-record", broken_import),
    ("erasure-open-long", erasure),
    ("erasure-open-long", broken_erasure),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found_and_nothing_else(code: str, damage: Damage) -> None:
    table = small()
    assert codes(check(table)) == set()
    damage(table)
    assert codes(check(table)) == set(code.split())


def test_every_code_is_tried_and_documented() -> None:
    notes_only = {"fence-intent", "dropped", "not-checked", "unknown-object"}
    assert {code for names, _ in DAMAGES for code in names.split()} | notes_only == CODES.keys()
    text = (DOCS / "repair.md").read_text()
    assert [name for name in CODES if f"`{name}`" not in text] == []


def test_a_schema_conflict_is_told_with_both_types_and_log_files() -> None:
    table = small()
    two_types(table)
    (finding,) = [each for each in check(table).findings if each.code == "schema-conflict"]
    assert "BIGINT" in finding.message
    assert f"bigint in {last_append(table)}" in finding.message


def test_the_intent_of_a_run_that_was_cut_off_is_a_note() -> None:
    table = small()
    fence = orjson.loads(table.store.get(table.paths.fence_key("merge")).body)
    lost = table.paths.log_key(time_ms=table.clock.now_ms(), commit_id="0a", is_merged=True)
    table.store.put(table.paths.fence_key("merge"), orjson.dumps({**fence, "commit": lost}))
    report = check(table)
    (finding,) = [each for each in report.findings if each.code == "fence-intent"]
    assert finding.severity == "note"
    assert lost in finding.message
    assert fence["owner"] in finding.message


def test_a_commit_that_landed_and_was_cleaned_away_is_no_intent() -> None:
    table = small()
    table.append(7, p="b")
    table.append(8, p="b")
    assert table.merge().committed_key  # now the fence of ingest names a dead log file
    table.clock.advance(table.config.data_grace_ms)
    table.vacuum()
    assert "fence-intent" not in codes(check(table), "note")


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


def test_young_unnamed_files_are_a_note() -> None:
    table = small()
    table.store.put(table.paths.data_key(partition="p=a", file_id="lost"), b"{}")
    report = check(table)
    assert codes(report) == set()
    assert codes(report, "note") == {"orphan"}


def test_a_dropped_table_is_said_to_be_one() -> None:
    table = small()
    config = orjson.loads(table.store.get(table.paths.config_key).body)
    for state in ("trash", "purging"):
        mark = {"state": state, "drop_id": "0" * 32, "keep_ms": 0}
        table.store.put(table.paths.config_key, orjson.dumps({**config, "dropped": mark}))
        report = check(table)
        assert codes(report) == set()
        assert codes(report, "note") == {"dropped"}


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


def test_a_thousand_log_files_are_an_error() -> None:
    table = small()
    for number in range(1000):
        append_log(table, LogFile(time_ms=table.clock.now_ms(), commit_id=f"{number:04x}"))
    assert codes(check(table, deep=False), "error") == {"log-count"}


def test_a_view_without_its_source_is_an_error() -> None:
    table = small()
    view = SmallView(table)
    table.append(7)
    view.feed_all()
    assert codes(check(table, view.paths, deep=False)) == set()
    table.store.delete([table.paths.config_key])
    assert codes(check(table, view.paths, deep=False)) == {"view-registration"}


def test_a_source_that_does_not_know_its_view_is_a_warning() -> None:
    table = small()
    view = SmallView(table)
    table.store.delete([table.paths.view_key("v")])
    table.clock.advance(2 * HOUR_MS)
    assert codes(check(table, view.paths)) == {"view-registration"}
    assert codes(check(table, view.paths), "error") == set()


def test_a_view_that_was_removed_by_hand_is_a_note() -> None:
    table = small()
    view = SmallView(table)
    table.store.delete([view.paths.config_key])
    report = check(table)
    assert codes(report) == set()
    assert codes(report, "note") == {"view-registration"}


def test_old_rows_beside_a_marker_without_counts() -> None:
    """Log files of other v3 writers say nothing of rows: nothing to compare."""
    table = small()
    edit_marker(table, last_append(table), row_count=None)
    report = check(table)
    assert codes(report) == set()
    assert report.figures["live_rows"] == 5


def test_wire_problems_are_listed_line_by_line() -> None:
    table = small()
    marker = FileMarker("wh/t/_data/p=b/../x.parquet", 1, 1, row_count=1)
    edit(table, last_append(table), lambda log: replace(log, markers=(*log.markers, marker, marker)))
    lines = [each.line for each in check(table, deep=False).findings if each.code == "foreign-path"]
    assert lines == [3, 4]

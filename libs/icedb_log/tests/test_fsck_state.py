"""``icedb fsck``: damage of fences, tags, staging, quarantine and records, and exactly that is found."""

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.table import Table
from icedb_log.holds.erasures import create_erasure
from icedb_log.holds.tags import create_tag
from icedb_log.ingest.pressure import HALT_TTL_MS, publish_trouble
from icedb_sim.tables.fsck_tables import check, codes, codes_after, data_file, last_append, small
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS

Damage = Callable[[SmallTable], object]


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


def unknown_staging(table: SmallTable) -> None:
    table.store.put(f"{table.paths.staging_prefix}notes.txt", b"x")


def old_staging(table: SmallTable) -> None:
    table.stage([{"id": 1, "p": "a"}])
    table.clock.advance(2 * HOUR_MS)


def failing_flushes(table: SmallTable) -> None:
    publish_trouble(table, "failing", "a job without batches crashes", clock=table.clock)


def quarantine_alone(table: SmallTable) -> None:
    batch_id = table.stage([{"id": 1, "p": "a"}])
    table.store.put(table.paths.quarantine_key(f"{batch_id}.batch-{'0' * 32}.ndjson"), b"{}")
    table.flush()
    table.clock.advance(2 * HOUR_MS)


def quarantine_garbled(table: SmallTable) -> None:
    batch_id = table.stage([{"id": 1, "p": "a"}])
    table.store.put(table.paths.quarantine_key(f"{batch_id}.json"), b"why?")
    table.flush()


def broken_lease(table: SmallTable) -> None:
    table.store.put(table.paths.hold_key("lease", "0" * 32), b"for ever")


def broken_tag(table: SmallTable) -> None:
    table.store.put(table.paths.hold_key("tag", "0" * 32, name="q3"), b"for ever")


def tag_lost_file(table: SmallTable) -> None:
    """A dead file that a tag holds went, long after it died."""
    table.append(7)
    create_tag(Table.open(table, clock=table.clock), "q3", ttl_ms=None)
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
    create_erasure(table, condition="id = 1", clock=table.clock)
    table.clock.advance(3 * DAY_MS)


def broken_erasure(table: SmallTable) -> None:
    table.store.put(table.paths.erasure_key("01900000-0000-7000-8000-000000000000"), b"{}")


DAMAGES: list[tuple[str, Damage]] = [
    ("store-clock", future_object),
    ("store-clock", host_clock),
    ("fence-missing", no_fence),
    ("fence-unreadable", broken_fence),
    ("fence-unreadable", foreign_intent),
    ("staging-unknown", unknown_staging),
    ("staging-old", old_staging),
    ("flushes-fail", failing_flushes),
    ("quarantine-without-reason", quarantine_alone),
    ("quarantine-without-reason", quarantine_garbled),
    ("lease", broken_lease),
    ("tag", broken_tag),
    ("tag", tag_lost_file),
    ("view-registration", broken_registration),
    ("view-registration", pending_registration),
    ("import-record", broken_import),
    ("erasure-open-long", erasure),
    ("erasure-open-long", broken_erasure),
]


@pytest.mark.parametrize(("code", "damage"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found_and_nothing_else(code: str, damage: Damage) -> None:
    assert codes_after(damage) == set(code.split())


def test_flushes_that_fail_are_a_warning_with_the_reason_as_long_as_that_counts() -> None:
    table = small()
    failing_flushes(table)
    report = check(table)
    assert report.is_sound
    (finding,) = report.findings
    assert (finding.severity, finding.message) == ("warning", "a job without batches crashes")
    table.clock.advance(HALT_TTL_MS + 1)
    assert codes(check(table)) == set()


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


def test_a_dropped_table_is_said_to_be_one() -> None:
    table = small()
    config = orjson.loads(table.store.get(table.paths.config_key).body)
    for state in ("trash", "purging"):
        mark = {"state": state, "drop_id": "0" * 32, "keep_ms": 0}
        table.store.put(table.paths.config_key, orjson.dumps({**config, "dropped": mark}))
        report = check(table)
        assert codes(report) == set()
        assert codes(report, "note") == {"dropped"}


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

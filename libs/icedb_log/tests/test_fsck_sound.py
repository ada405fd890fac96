"""``icedb fsck`` of tables that are sound: never a finding, whatever happened before and whatever happens meanwhile."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.commit.fence import seal
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError, NotFound, Unavailable
from icedb_log.holds.tags import create_tag, delete_tag
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_findings import FsckReport
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.row_footers import RowFooterReader
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView


def check(table: SmallTable, *, page_size: int = 1000) -> FsckReport:
    options = FsckOptions(footers=RowFooterReader(table.store), fetch_threads=1, page_size=page_size)
    return fsck_table(table, clock=table.clock, options=options)


def bad(report: FsckReport) -> list[Any]:
    """Return errors and warnings."""
    return [each for each in report.findings if each.severity != "note"]


class Meddler(ScriptedStore):
    """Lets somebody else act at the n-th call, counted from when it is told to."""

    meddle_at = -1
    act: Callable[[], object] = staticmethod(lambda: None)

    def _run(self, method: str, key: str, action: Callable[[], Any]) -> Any:
        if self.meddle_at == 0:
            self.meddle_at = -1
            self.act()
        elif self.meddle_at > 0:
            self.meddle_at -= 1
        return super()._run(method, key, action)


def with_history() -> SmallTable:
    """Appends, merges, deletions, removals, vacuums, a lease, a tag, a seal, a view."""
    table = SmallTable(has_footers=True)
    view = SmallView(table)
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    table.merge()
    view.feed_all()
    table.append(4)
    table.delete("id = 1")
    create_tag(Table.open(table, clock=table.clock), "q3")
    put_lease(table, at_ms=table.clock.now_ms(), ttl_ms=60_000, clock=table.clock)
    table.clock.advance(25_000)
    table.vacuum()
    table.append(5, p="c")
    table.drop("p=c")
    seal(table.store, table.paths.log_key(time_ms=table.clock.now_ms(), commit_id="5e", is_merged=False))
    table.append(6)
    return table


def test_a_table_with_a_history_is_sound() -> None:
    table = with_history()
    for _ in range(4):
        report = check(table)
        assert bad(report) == []
        assert report.is_sound
        table.clock.advance(30_000)
        table.vacuum()
        table.append(9)
        table.merge()
    assert bad(check(table, page_size=3)) == []


def test_an_empty_table_is_sound() -> None:
    assert bad(check(SmallTable())) == []


def test_nothing_is_written() -> None:
    table = with_history()
    table.store.calls.clear()
    check(table)
    writes = ("put", "put_if_absent", "put_if_match", "delete", "upload")
    assert table.store.keys_of(*writes) == []


def turn_over(table: SmallTable) -> None:
    """Everything that lives now is merged and dies, then goes."""
    table.append(7)
    table.append(8, p="b")
    table.merge(full=True)
    for _ in range(2):
        table.clock.advance(table.config.data_grace_ms)
        table.vacuum()


def merge_only(table: SmallTable) -> None:
    """A merge lands; nothing is deleted."""
    table.append(7)
    table.append(8)
    table.merge(full=True)


def delete_tag_and_vacuum(table: SmallTable) -> None:
    """A tag ends, and what it held goes."""
    table.merge(full=True)
    delete_tag(table, "q3")
    for _ in range(3):
        table.clock.advance(table.config.data_grace_ms)
        table.vacuum()


@pytest.mark.parametrize("act", [turn_over, merge_only, delete_tag_and_vacuum])
@pytest.mark.parametrize(("page_size", "first"), [(1000, 0), (1000, 1), (4, 2)])
def test_others_work_at_every_store_call(act: Callable[[SmallTable], None], page_size: int, first: int) -> None:
    number = first
    while True:
        table = with_history()
        table.store = Meddler(table.store.inner)
        table.store.meddle_at = number
        table.store.act = lambda table=table: act(table)
        report = check(table, page_size=page_size)
        assert bad(report) == [], f"at call {number}"
        if table.store.meddle_at >= 0:
            break  # it made fewer calls than that
        number += 3 if page_size == 1000 else 5
    assert number > 20


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER])
def test_whatever_was_cut_off_is_no_damage(effect: Effect) -> None:
    """A flush, a merge and a vacuum are cut off at one call each; what they leave is no error."""
    for number in range(0, 40, 3):
        table = with_history()
        for act in (lambda: table.append(7), lambda: table.merge(full=True), table.vacuum):
            table.store.calls.clear()
            table.store.fault_at = {number: effect}
            with contextlib.suppress(IceDBError, Crash):
                act()
            table.store.fault_at = {}
            table.clock.advance(60_000)
        assert bad(check(table)) == []


def test_a_vacuum_that_was_cut_off_before_the_strip_is_no_damage() -> None:
    table = SmallTable(has_footers=True)
    for number in range(3):
        table.append(number)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms)
    table.vacuum()
    table.clock.advance(table.config.data_grace_ms)
    table.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, table.paths.log_prefix)]
    with contextlib.suppress(Crash):
        table.vacuum()
    assert table.store.script == []
    assert len(table.keys(table.paths.data_prefix)) == 1  # the dead ones are gone, and still named
    assert bad(check(table)) == []


def test_an_orphan_that_the_janitor_deletes_meanwhile_is_no_finding() -> None:
    table = with_history()
    key = table.paths.data_key(partition="p=a", file_id="lost")
    table.store.put(key, b"{}")
    table.clock.advance(table.config.orphan_age_ms)
    assert [each.key for each in bad(check(table))] == [key]
    table.store.script = [Fault("head", None, key, before=lambda: table.store.inner.delete([key]))]
    assert bad(check(table)) == []


def test_a_damaged_file_that_is_removed_meanwhile_is_no_finding() -> None:
    table = with_history()
    path = table.snapshot().live[0].path
    table.store.put(path, b"\0" * table.store.head(path).size_bytes)
    assert [each.code for each in bad(check(table))] == ["footer-unreadable"]
    log = table.paths.log_prefix
    table.store.script = [
        Fault("list_page", None, log),
        Fault("list_page", None, log, before=lambda: table.drop("p=*")),
    ]
    assert bad(check(table)) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc")),
        st.tuples(st.just("merge"), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("drop"), st.sampled_from("abc")),
        st.tuples(st.just("vacuum"), st.sampled_from([0, 15_000, 70_000])),
        st.tuples(st.just("feed"), st.none()),
        st.tuples(st.just("lose"), st.integers(0, 12)),
    ),
    min_size=3,
    max_size=14,
)


@given(STEPS)
def test_random_histories_have_no_errors(steps: list[tuple[str, Any]]) -> None:
    table = SmallTable(has_footers=True)
    view = SmallView(table)
    for number, (step, value) in enumerate(steps):
        try:
            if step == "append":
                table.append(number, p=value)
            elif step == "merge":
                table.merge(full=value)
            elif step == "delete":
                table.delete(f"id = {value}")
            elif step == "drop":
                table.drop(f"p={value}")
            elif step == "vacuum":
                table.clock.advance(value)
                table.vacuum()
            elif step == "feed":
                view.feed_all()
            else:
                table.store.fault_at = {len(table.store.calls) + value: Effect.LOSE_ANSWER}
        except IceDBError:
            pass
    table.store.fault_at = {}
    assert bad(check(table)) == []


def test_a_log_that_never_holds_still_is_told() -> None:
    table = SmallTable()
    table.append(1)
    (key,) = table.keys(table.paths.log_prefix)
    table.store.script = [Fault("get", Effect.REFUSE, key)] * 10
    with pytest.raises(Unavailable):
        check(table)


def test_a_table_that_is_not_there() -> None:
    table = SmallTable()
    table.paths = table.paths.sibling("nothing")
    with pytest.raises(NotFound):
        check(table)

"""Feeds: every commit of a source is in a view exactly once, whatever happens to either log in between (V1 to V5)."""

import contextlib
from dataclasses import dataclass, replace

import orjson
import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, IceDBError, InvalidRequest, InvariantViolated
from icedb_log.feed.feeds import FeedLimits
from icedb_log.feed.views import is_feed_needed, list_view_lags, register_view
from icedb_log.keys import log_name
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_log.serving.status import read_status
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import DISTURBANCES, Crash, Effect, Fault
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView, feed_state, grow_old


def test_a_view_has_the_rows_of_every_commit_once(table):
    table.append(1)
    view = SmallView(table)  # what was there before is not its business
    table.append(2, 3)
    table.append(4, p="b")
    result = view.feed()
    assert (result.commit_count, result.rows_read, result.row_count, result.waiting_count) == (2, 3, 3, 0)
    assert view.ids() == [2, 3, 4]
    assert not view.feed().committed_key
    table.append(5)
    assert view.feed().commit_count == 1
    assert view.ids() == [2, 3, 4, 5]
    assert table.ids() == [1, 2, 3, 4, 5]


def test_a_feed_takes_the_oldest_within_its_bounds(table):
    view = SmallView(table)
    for number in range(5):
        table.append(number)
    first = view.feed(limits=FeedLimits(max_commits=2))
    assert (first.commit_count, first.waiting_count, view.ids()) == (2, 3, [0, 1])
    second = view.feed(limits=FeedLimits(max_bytes=1))  # one commit may exceed it
    assert (second.commit_count, second.waiting_count, view.ids()) == (1, 2, [0, 1, 2])
    assert view.feed_all() == 2
    assert view.ids() == [0, 1, 2, 3, 4]


@dataclass
class LeavingFeeder:
    """Leaves the last commit to the next feed, and says so, or does not."""

    inner: RowFileFeeder
    is_honest: bool

    def feed_rows(self, job):
        output = self.inner.feed_rows(replace(job, commits=job.commits[:-1]))
        return replace(output, deferred=job.commits[-1:]) if self.is_honest else output


def test_commits_that_the_query_leaves_wait(table):
    view = SmallView(table)
    for number in range(3):
        table.append(number)
    result = view.feed(feeder=LeavingFeeder(RowFileFeeder(table.store, table.clock), is_honest=True))
    assert (result.commit_count, result.waiting_count, view.ids()) == (2, 1, [0, 1])
    assert view.feed().commit_count == 1


def test_an_answer_that_forgets_a_commit_is_not_committed(table):
    view = SmallView(table)
    table.append(1)
    table.append(2)
    with pytest.raises(InvariantViolated, match="did not decide each"):
        view.feed(feeder=LeavingFeeder(RowFileFeeder(table.store, table.clock), is_honest=False))
    view.feed()
    assert view.ids() == [1, 2]


def test_commits_that_were_merged_before_they_were_fed_are_fed_as_appended(table):
    view = SmallView(table)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    grow_old(table)
    appends = [file for file in table.view().files if "_m_" not in file.key]
    # The data files that they list as live wait with them.
    kept = {file.key for file in appends} | {marker.path for file in appends for marker in file.log.markers}
    assert {each.path for each in table.vacuum(dry_run=True).waiting if each.guard == "view"} == kept
    table.vacuum()  # V4: must not take what the view has not taken
    table.append(3)
    assert view.feed_all() == 3
    assert view.ids() == table.ids() == [1, 2, 3]
    vacuumed = table.vacuum()
    assert (len(vacuumed.deleted_logs), len(vacuumed.waiting)) == (2, 0)
    assert len(table.vacuum().deleted_data) + len(vacuumed.deleted_data) == 2
    assert not view.feed().committed_key
    assert view.ids() == [1, 2, 3]


def test_without_a_view_nothing_waits(table):
    table.append(1)
    table.append(2)
    table.merge(full=True)
    grow_old(table)
    assert len(table.vacuum().deleted_logs) == 2


def test_what_was_taken_outlives_merges_and_vacuums_of_the_view(table):
    view = SmallView(table)
    for number in range(4):
        table.append(number)
        view.feed()
    for _ in range(2):
        view.merge(full=True)
        grow_old(table)
        view.vacuum()
        table.append(10 + table.clock.now_ms() % 7)
        view.feed()
    ids = table.ids()
    assert len(view.view().files) < 7
    assert view.ids() == ids
    assert not view.feed().committed_key


def test_names_whose_log_file_is_gone_are_forgotten(table):
    view = SmallView(table)
    for number in range(4):
        table.append(number)
    view.feed()
    assert len(feed_state(view).names) == 4
    table.merge(full=True)
    grow_old(table)
    table.vacuum()
    table.append(5)
    view.feed()
    assert len(feed_state(view).names) == 1
    assert view.ids() == table.ids()


def test_an_empty_commit_and_one_of_which_the_query_makes_nothing_are_taken(table):
    view = SmallView(table)
    table.stage_bytes(b"no json")
    table.flush()  # refused: a commit without data files
    first = view.feed()
    assert (first.commit_count, first.file_count) == (1, 0)
    table.append(1)
    second = view.feed(feeder=RowFileFeeder(table.store, table.clock, query=lambda _rows: []))
    assert (second.commit_count, second.rows_read, second.file_count) == (1, 1, 0)
    assert not view.feed().committed_key


def append_poison(table, number):
    table.stage([{"id": number, "p": "a", "poison": "x"}])
    table.flush()


def test_a_commit_that_the_query_cannot_take_is_refused_alone(table):
    view = SmallView(table)
    for number in (1, 2):
        table.append(number)
    append_poison(table, 3)
    table.append(4)
    result = view.feed()
    assert [each.reason for each in result.refused] == ["a row is poisoned"]
    assert result.commit_count == 3
    assert view.ids() == [1, 2, 4]
    (key,) = table.keys(view.paths.refused_prefix)
    record = orjson.loads(table.store.get(key).body)
    assert record["source"] == "t"
    assert record["reason"] == "a row is poisoned"
    assert view.paths.refused_key(record["log_file"]) == key
    assert view.lag().refused_commits == 1
    assert not view.feed().committed_key


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.DROP])
def test_a_refusal_whose_record_was_not_written_is_recorded_by_the_next_feed(table, effect):
    view = SmallView(table)
    append_poison(table, 1)
    table.store.script.append(Fault("put_if_absent", effect, key="_icedb/refused/"))
    with contextlib.suppress(IceDBError, Crash):
        view.feed()
    assert not table.keys(view.paths.refused_prefix)
    table.append(2)
    table.merge(full=True)
    grow_old(table)
    table.vacuum()  # the source forgets the commit; the view must not
    view.merge(full=True)
    grow_old(table)
    view.vacuum()
    assert is_feed_needed(*view.opened())
    view.feed()
    assert len(table.keys(view.paths.refused_prefix)) == 1
    assert view.ids() == [2]
    assert not is_feed_needed(*view.opened())


@pytest.mark.parametrize("effect", DISTURBANCES)
def test_a_feed_that_is_disturbed_at_any_call_leaves_each_commit_to_be_taken_once(effect):
    number = 0
    while True:
        table = SmallTable()
        view = SmallView(table)
        table.append(1)
        append_poison(table, 2)
        table.append(3)
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            view.feed()
        is_over = len(table.store.calls) <= number
        table.store.fault_at = {}
        table.append(4)
        view.feed_all()
        table.store.land_delayed()
        view.feed_all()
        assert view.ids() == [1, 3, 4], number
        assert len(table.keys(view.paths.refused_prefix)) == 1
        grow_old(table)
        table.merge(full=True)
        grow_old(table)
        assert not [each for each in table.vacuum().waiting if each.guard == "view"]
        if is_over:
            assert number > 10
            return
        number += 1


def test_v3_what_is_there_when_the_registration_is_pending_is_skipped_and_all_later_is_fed(table):
    table.append(1)
    view = SmallView(table, is_created=False)
    key = table.paths.view_key("v")
    table.store.script = [
        Fault("put_if_absent", None, key, before=lambda: table.append(2)),
        Fault("put_if_match", None, key, before=lambda: table.append(3)),
    ]
    view.create()
    table.append(4)
    view.feed_all()
    assert view.ids() == [3, 4]


@pytest.mark.parametrize("effect", DISTURBANCES)
def test_a_creation_that_is_disturbed_at_any_call_can_be_repeated(effect):
    number = 0
    while True:
        table = SmallTable()
        table.append(1)
        view = SmallView(table, is_created=False)
        table.store.calls.clear()
        table.store.fault_at = {number: effect}
        with contextlib.suppress(IceDBError, Crash):
            view.create()
        is_over = len(table.store.calls) <= number
        table.store.fault_at = {}
        with contextlib.suppress(InvalidRequest):  # it exists
            view.create()
        register_view(table, "v", clock=table.clock)
        table.append(2)
        table.store.land_delayed()
        view.feed_all()
        assert view.ids() == [2], number
        if is_over:
            assert number > 5
            return
        number += 1


def test_a_view_takes_no_batches(table):
    view = SmallView(table)
    table.append(1)
    view.feed()
    as_table = SmallTable(store=table.store, name="other")
    as_table.paths = view.paths  # somebody stages past every check
    as_table.stage([{"id": 7, "p": "a"}])
    result = as_table.flush()
    assert "is a view of 't': it takes no batches" in result.rejected[0].reason
    assert view.ids() == [1]
    table.append(2)
    view.feed()
    assert view.ids() == [1, 2]


def test_only_a_view_can_be_fed(table):
    view = SmallView(table)
    view.paths = table.paths
    with pytest.raises(InvalidRequest, match="table t is no view"):
        view.feed()


def test_a_view_with_a_full_log_takes_nothing(table, monkeypatch):
    view = SmallView(table)
    table.append(1)
    view.feed()
    table.append(2)
    monkeypatch.setattr("icedb_log.feed.feeds.MAX_LOG_FILES", 1)
    result = view.feed()
    assert (result.is_log_full, result.committed_key, result.waiting_count) == (True, None, 1)


def test_a_missing_data_file_halts_the_view(table):
    view = SmallView(table)
    table.append(1)
    table.store.delete([table.snapshot().live[0].path])
    with pytest.raises(CorruptLog, match="--detach v`"):
        view.feed()


def test_a_refusal_that_another_feed_has_recorded_is_left_as_it_is(table):
    view = SmallView(table)
    append_poison(table, 1)
    (log_key,) = table.keys(table.paths.log_prefix)
    table.store.put(view.paths.refused_key(log_name(log_key)), b"by another feed")
    assert view.feed().refused
    (key,) = table.keys(view.paths.refused_prefix)
    assert table.store.get(key).body == b"by another feed"


def test_a_view_that_is_halted_hides_no_other(table):
    halted, sound = SmallView(table), SmallView(table, name="w")
    table.append(1)
    table.store.put(f"{halted.paths.log_prefix}0000000000001_aa.jsonl", b"broken")
    told = []
    lags = list_view_lags(table.opened(), on_halt=lambda view, _: told.append(view))
    assert [(lag.view, lag.state, lag.waiting_commits) for lag in lags] == [("v", "halted", 0), ("w", "active", 1)]
    assert told == ["v"]
    assert sound.feed().commit_count == 1


def test_the_lag_is_the_age_of_the_oldest_commit_that_waits(table):
    view = SmallView(table)
    assert (view.lag().state, view.lag().waiting_commits, view.lag().lag_ms) == ("active", 0, 0)
    table.append(1)
    table.clock.advance(5000)
    table.append(2)
    lag = view.lag()
    assert (lag.view, lag.source, lag.waiting_commits) == ("v", "t", 2)
    assert 5000 <= lag.lag_ms <= 5010
    view.feed()
    assert view.lag().lag_ms == 0
    unknown = SmallView(table, name="w", is_created=False)
    table.store.put(unknown.paths.config_key, unknown.config.model_dump_json().encode())
    assert unknown.lag().state == "unregistered"


def test_the_status_of_a_view_says_how_far_it_is_behind(table):
    view = SmallView(table)
    table.append(1)
    state = read_status(Table.open(TableStore(table.store, view.paths), clock=table.clock))
    assert (state.view.source, state.view.waiting_commits) == ("t", 1)
    assert table.status().view is None
    table.store.delete([table.paths.config_key])
    assert read_status(Table.open(TableStore(table.store, view.paths), clock=table.clock)).view.state == "broken"


def test_a_view_that_its_source_does_not_know_is_registered_by_its_first_feed(table):
    view = SmallView(table, is_created=False)
    table.store.put(view.paths.config_key, view.config.model_dump_json().encode())
    assert is_feed_needed(*view.opened())
    table.append(1)
    assert not view.feed().committed_key
    table.append(2)
    view.feed()
    assert view.ids() == [2]


def test_seals_of_the_source_are_no_commits(table):
    view = SmallView(table)
    key = table.paths.log_key(time_ms=table.clock.now_ms(), commit_id="ab", is_merged=False)
    table.store.put(key, encode_log_file(LogFile(time_ms=table.clock.now_ms(), is_seal=True)))
    assert not view.feed().committed_key
    assert view.lag().waiting_commits == 0

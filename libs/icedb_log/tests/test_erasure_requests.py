"""Requests of erasures and their records: what is refused, and what several workers make of one (E1, E2)."""

import orjson
import pytest
from icedb_log.clock import new_batch_id
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.holds.erasures import (
    change_erasure,
    create_erasure,
    list_erasures,
    list_open_ids,
    read_erasure,
)
from icedb_log.keys import TablePaths
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.erasure_steps import (
    StatsChanger,
    advance,
    append_users,
    ask,
    clean,
    find_traces,
    finish,
    live_users,
    make_users_table,
)


@pytest.fixture
def table():
    return make_users_table()


@pytest.mark.parametrize("condition", ["nope = 1", "drop table t", "u = 3"])
def test_a_condition_that_does_not_fit_is_refused_and_nothing_is_changed(table, condition):
    before = {key: table.store.get(key).info.etag for key in list(table.keys())}
    erasure_id = ask(table, condition)
    done = advance(table, erasure_id).erasure
    assert done.state == "refused"
    assert done.refusal
    own = table.paths.erasure_key(erasure_id)
    assert {k: table.store.get(k).info.etag for k in list(table.keys()) if k != own} == before
    assert read_erasure(table, erasure_id) == done


def test_a_refusal_while_it_rewrites_changes_nothing(table):
    class Refusing(StatsChanger):
        def merge_groups(self, job):
            merged = super().merge_groups(job)
            if len(job.groups) == 1:
                raise InvalidRequest("cannot be rewritten")
            return merged

    live = table.snapshot().snapshot_id
    erasure_id = ask(table, "u = 'victim' and p = 'a'")
    assert advance(table, erasure_id, changer=Refusing(table.store, table.clock)).erasure.state == "refused"
    assert table.snapshot().snapshot_id == live


def test_a_worker_that_slept_too_long_is_no_reason_to_refuse_unless_it_happens_again_and_again(table):
    class Sleepy(StatsChanger):
        def merge_groups(self, job):
            table.clock.advance(table.config.orphan_age_ms)
            return super().merge_groups(job)

    erasure_id = ask(table)
    for _ in range(4):
        with pytest.raises(InvalidRequest, match="one commit may take half the orphan age"):
            advance(table, erasure_id, changer=Sleepy(table.store, table.clock))
    erasure = read_erasure(table, erasure_id)
    assert (erasure.state, [run.has_landed for run in erasure.runs]) == ("requested", [False] * 4)
    assert advance(table, erasure_id, changer=Sleepy(table.store, table.clock)).erasure.state == "refused"
    assert live_users(table).count("victim") == 3


def test_a_request_that_makes_no_sense_is_not_written(table):
    keys = table.keys()
    for options in ({"condition": " "}, {"condition": "x" * 200_000}, {"condition": "u = 'a'", "note": "n" * 3000}):
        with pytest.raises(InvalidRequest):
            create_erasure(table, clock=table.clock, **options)
    with pytest.raises(NotFound, match="ghost"):
        create_erasure(TableStore(table.store, TablePaths("ghost", "wh/ghost")), clock=table.clock, condition="u = 'a'")
    assert table.keys() == keys


def test_open_erasures_are_bounded(table, monkeypatch):
    monkeypatch.setattr("icedb_log.holds.erasures.MAX_OPEN_ERASURES", 2)
    ask(table)
    ask(table)
    with pytest.raises(InvalidRequest, match="2 erasures are open"):
        ask(table)


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.DROP, Effect.TRY_TWICE])
def test_a_request_whose_answer_is_lost_is_looked_for(table, effect):
    table.store.script = [Fault("put_if_absent", effect, "/erasures/")]
    erasure_id = ask(table)
    assert read_erasure(table, erasure_id).state == "requested"
    assert list_open_ids(table) == (erasure_id,)


def test_a_request_that_nobody_can_look_for_is_unknown(table):
    table.store.script = [
        Fault("put_if_absent", Effect.DROP, "/erasures/"),
        Fault("get", Effect.UNAVAILABLE, "/erasures/"),
    ]
    with pytest.raises(CommitOutcomeUnknown, match="erasure list"):
        ask(table)
    assert list_open_ids(table) == ()


def test_e1_what_has_ended_is_never_changed(table):
    erasure_id = ask(table)
    key = table.paths.erasure_key(erasure_id)
    asked = table.store.get(key).body
    done = finish(table, erasure_id)
    body = table.store.get(key).body
    with pytest.raises(PreconditionFailed):
        table.store.put_if_absent(key, asked)  # the request's own PUT, once more
    append_users(table, "victim")
    assert advance(table, erasure_id).erasure == done
    assert change_erasure(table, erasure_id, lambda now: now.model_copy(update={"note": "changed"})) == done
    assert table.store.get(key).body == body
    assert list_open_ids(table) == ()
    assert live_users(table) == ["ann", "bob", "cid", "victim"]


def test_who_looks_again_and_again_reads_an_ended_record_once(table):
    first, second = ask(table, "u = 'nobody'"), ask(table)
    ended = set()
    assert list_open_ids(table, ended=ended) == (first, second)
    advance(table, first)
    table.store.calls.clear()
    for _ in range(3):
        assert list_open_ids(table, ended=ended) == (second,)
    assert len(table.store.keys_of("list_page")) == 3
    keys = [table.paths.erasure_key(each) for each in (first, second)]
    assert [table.store.keys_of("get").count(key) for key in keys] == [1, 3]
    assert ended == {keys[0]}


def test_erasures_are_listed_newest_first_open_and_ended(table):
    first = ask(table, "u = 'nobody'")
    advance(table, first)
    second = ask(table)
    assert [e.erasure_id for e in list_erasures(table, limit=10)] == [second, first]
    assert [e.state for e in list_erasures(table, limit=10)] == ["requested", "complete"]
    assert [e.erasure_id for e in list_erasures(table, limit=1)] == [second]
    with pytest.raises(NotFound, match="no erasure"):
        read_erasure(table, new_batch_id(table.clock))
    with pytest.raises(InvalidRequest, match="is not the id of an erasure"):
        read_erasure(table, "../table")


def test_a_record_that_is_not_understood_is_named(table):
    erasure_id = ask(table)
    key = table.paths.erasure_key(erasure_id)
    body = orjson.loads(table.store.get(key).body)
    table.store.put(key, orjson.dumps({**body, "format": 2}))
    with pytest.raises(UnsupportedFormat, match=f"{key}.*format"):
        advance(table, erasure_id)


@pytest.mark.parametrize(("others", "words"), [(advance, "is deleted by another"), (finish, "is complete by another")])
def test_a_worker_that_wakes_up_late_stops(table, others, words):
    """A deletion that another worker has gone on from is not written down any more, and cannot commit."""
    erasure_id = ask(table)

    class Sleepy(StatsChanger):
        def merge_groups(self, job):
            merged = super().merge_groups(job)
            others(table, erasure_id)
            return merged

    with pytest.raises(Fenced, match=words):
        advance(table, erasure_id, changer=Sleepy(table.store, table.clock))
    assert finish(table, erasure_id).row_count == 3


class Doubtful(StatsChanger):
    """Does not understand any condition."""

    def check_change(self, config, schema, change):
        raise InvalidRequest(f"{change.sql} is not understood")


def test_what_is_refused_is_not_deleted_by_a_worker_that_sleeps(table):
    """A worker that does not understand the condition refuses; another one is just before its commit."""
    erasure_id = ask(table)
    changer = Doubtful(table.store.inner, table.clock)
    fence = table.paths.fence_key("merge")
    table.store.script = [
        Fault("put_if_match", None, fence, before=lambda: advance(table, erasure_id, changer=changer))
    ]
    with pytest.raises(Fenced):
        advance(table, erasure_id)
    assert read_erasure(table, erasure_id).state == "refused"
    assert live_users(table).count("victim") == 3


def test_what_another_worker_has_done_is_not_refused_any_more(table):
    erasure_id = ask(table)
    done = []

    def other():
        done.append(advance(table, erasure_id).erasure.state)

    table.store.script = [Fault("list_page", None, table.paths.config_key, before=other)]
    progress = advance(table, erasure_id, changer=Doubtful(table.store, table.clock))
    assert (done, progress.erasure.state) == (["deleted"], "deleted")
    assert finish(table, erasure_id).row_count == 3


def test_a_record_that_others_changed_meanwhile_is_changed_again(table):
    erasure_id = ask(table)
    table.store.script = [Fault("put_if_match", Effect.REFUSE, "/erasures/") for _ in range(3)]
    assert advance(table, erasure_id).erasure.row_count == 3
    table.store.script = [Fault("put_if_match", Effect.REFUSE, "/erasures/") for _ in range(10)]
    with pytest.raises(CommitConflict, match="10 times in a row"):
        change_erasure(table, erasure_id, lambda now: now.model_copy(update={"note": "changed"}))


def test_a_store_that_does_not_answer_leaves_the_record_as_it_is(table):
    erasure_id = ask(table)
    table.store.script = [Fault("list_page", Effect.UNAVAILABLE, "_data")]
    with pytest.raises(Unavailable):
        advance(table, erasure_id)
    assert read_erasure(table, erasure_id).state == "requested"
    assert finish(table, erasure_id).row_count == 3


def test_a_commit_that_the_log_has_forgotten_makes_the_figure_a_lower_bound(table):
    erasure_id = ask(table)
    table.store.script = [Fault("list_page", Effect.CRASH_BEFORE, "_data")]
    table.store.script += []
    with pytest.raises(Crash):
        advance(table, erasure_id)
    body = orjson.loads(table.store.get(table.paths.erasure_key(erasure_id)).body)
    for run in body["runs"]:
        run.update(has_landed=None, log_key=None)  # it died before it could say so
    table.store.put(table.paths.erasure_key(erasure_id), orjson.dumps(body))
    append_users(table, "dan")
    append_users(table, "eve")
    table.merge(full=True)
    table.clock.advance(21_000)
    clean(table)
    done = finish(table, erasure_id)
    assert (done.state, done.row_count, done.is_row_count_exact) == ("complete", 0, False)
    assert find_traces(table, b"victim") == []

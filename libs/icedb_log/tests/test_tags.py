"""Tags: J4."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clean.orphans import OrphanPolicy
from icedb_log.clean.table_walk import TableWalk
from icedb_log.commit.table import Table
from icedb_log.errors import (
    BelowHorizon,
    CorruptLog,
    InvalidRequest,
    NotFound,
)
from icedb_log.holds.guards import STORE_RESOLUTION_MS, Hold, find_data_deaths
from icedb_log.holds.stored_holds import (
    HoldReader,
    decode_snapshot,
    end_body,
    find_ended_holds,
    find_oldest_certain_ms,
    require_certain,
)
from icedb_log.holds.tags import create_tag, delete_tag, find_tag, list_tags, read_tagged
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import FileMarker, LogFile, Widening
from icedb_log.store.object_store import list_all
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import DAY_MS, age, data_count, make_table, status, tag, tagged_ids

FORCED = OrphanPolicy(is_forced=True)


@pytest.fixture
def table():
    return make_table()


# -- what a tag is for


def test_j4_a_tagged_state_can_be_read_however_long_ago_and_needs_no_log_file(table):
    before = table.snapshot()
    made = tag(table)
    assert (made.file_count, made.row_count, made.state) == (2, 2, "active")
    table.merge(full=True)
    table.delete("id = 2")
    table.append(3)
    last = age(table)
    assert table.ids() == [1, 3]
    assert tagged_ids(table) == [1, 2]
    _, snapshot = read_tagged(table, "q3")
    assert (snapshot.snapshot_id, snapshot.schema) == (before.snapshot_id, before.schema)
    assert (snapshot.as_of_ms, snapshot.last_commit_ms) == (made.at_ms, before.last_commit_ms)
    assert {(w.guard, w.held_by, w.until_ms) for w in last.waiting} == {("tag", "q3", None)}
    assert {w.path for w in last.waiting} == {marker.path for marker in before.live}
    live_logs = {file.key for file in table.view().files} - table.snapshot().log_tombstoned_ms.keys()
    assert set(table.keys(table.paths.log_prefix)) == live_logs  # nothing of the log is kept for it


def test_j4_a_past_time_is_tagged_and_later_commits_are_not_part_of_it(table):
    at_ms = table.clock.now_ms() - 1
    table.append(3)
    made = tag(table, at_ms=at_ms, note="before three")
    assert (made.at_ms, made.note) == (at_ms, "before three")
    table.merge(full=True)
    age(table)
    assert tagged_ids(table) == [1, 2]


def test_a_tag_has_no_statistics_and_the_wider_type(table):
    path = table.paths.data_key(partition="p=a", file_id="f")
    marker = FileMarker(path, 9, 1, row_count=3, stats={"id": (41, 43, 0)}, extra={"zz": "41"})
    log = LogFile(1, {"id": "BIGINT", "p": "VARCHAR"}, (marker,), commit_id="aa", widened={"id": Widening("DOUBLE", 1)})
    key = table.paths.log_key(time_ms=1, commit_id="aa", is_merged=False)
    table.store.put(key, encode_log_file(log))
    made = tag(table)
    assert made.file_count == 3
    markers = decode_snapshot(made, table.store.get(made.key).body).markers
    assert not any(marker.stats or marker.extra for marker in markers)
    _, snapshot = read_tagged(table, "q3")
    assert (snapshot.schema["id"], snapshot.logged_schema["id"]) == ("DOUBLE", "BIGINT")


def test_an_empty_table_can_be_tagged():
    table = SmallTable()
    tag(table)
    table.append(1)
    assert tagged_ids(table) == []


def test_j4_files_stay_for_a_grace_period_after_a_tag_was_ended(table):
    tag(table)
    table.merge(full=True)
    age(table)
    assert delete_tag(table, "q3")
    ended_ms = table.clock.now_ms()
    assert not delete_tag(table, "q3")
    until_ms = ended_ms + table.config.data_grace_ms + MAX_STORE_GAP_MS
    assert {w.until_ms for w in table.vacuum(dry_run=True).waiting} == {until_ms}
    table.clock.advance(until_ms - table.clock.now_ms() - 1)
    assert find_ended_holds(table, data_grace_ms=table.config.data_grace_ms) == ()
    table.vacuum()
    assert data_count(table) == 3
    assert len(find_ended_holds(table, data_grace_ms=table.config.data_grace_ms)) == 1
    table.vacuum()
    assert data_count(table) == 1


def test_j4_a_tag_runs_from_its_last_modified_for_its_time_to_live(table):
    made = tag(table, ttl_ms=DAY_MS)
    table.merge(full=True)
    table.clock.advance(DAY_MS - 2)
    assert status(table) == "active"
    table.clock.advance(1)
    assert status(table) == "expired"
    with pytest.raises(InvalidRequest, match="has ended \\(expired\\)"):
        read_tagged(table, "q3")
    assert not delete_tag(table, "q3")
    table.vacuum()
    assert {w.guard for w in table.vacuum().waiting} == {"tag"}
    assert data_count(table) == 3
    table.clock.advance(made.held_until_ms(table.config.data_grace_ms) - table.clock.now_ms())
    table.vacuum()
    assert data_count(table) == 1


def test_a_name_is_free_again_when_its_tag_has_ended(table):
    first = tag(table)
    with pytest.raises(InvalidRequest, match="exists already"):
        tag(table)
    delete_tag(table, "q3")
    table.append(3)
    second = tag(table)
    assert second.key != first.key
    assert tagged_ids(table) == [1, 2, 3]
    assert [p.state for p in list_tags(table).holds] == ["ended", "active"]


def test_j4_deleting_an_ended_tag_late_does_not_touch_the_next_one_of_its_name(table):
    """Found by thinking of a janitor that lists an ended tag and sleeps until its name is taken again."""
    tag(table)
    delete_tag(table, "q3")
    table.clock.advance(table.config.data_grace_ms + MAX_STORE_GAP_MS)
    slow = find_ended_holds(table, data_grace_ms=table.config.data_grace_ms)
    table.store.delete(slow)
    tag(table)
    table.store.delete(slow)
    assert status(table) == "active"


# -- what is refused


def test_calls_that_cannot_be_are_refused_and_leave_nothing(table):
    now_ms = table.clock.now_ms()
    for name in ("", "Q3", "a b", "a/b", "a.b", "-a", "x" * 64):
        with pytest.raises(InvalidRequest, match="tag name"):
            tag(table, name)
    for options in ({"ttl_ms": 999}, {"ttl_ms": 1 << 60}, {"note": "x" * 501}, {"note": "a\nb"}):
        with pytest.raises(InvalidRequest):
            tag(table, **options)
    with pytest.raises(InvalidRequest, match="in the future"):
        tag(table, at_ms=now_ms + 60_000)
    with pytest.raises(NotFound):
        read_tagged(table, "q3")
    with pytest.raises(NotFound):
        delete_tag(table, "q3")
    with pytest.raises(NotFound, match="does not exist"):
        create_tag(Table.open(TableStore(table.store, table.paths.sibling("other")), clock=table.clock), "q3")
    assert table.keys(table.paths.holds_of("tag")) == []


def test_r3_a_time_below_the_horizon_cannot_be_tagged(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    age(table)
    with pytest.raises(BelowHorizon):
        tag(table, at_ms=at_ms)
    assert table.keys(table.paths.holds_of("tag")) == []


def test_j4_files_that_died_long_ago_cannot_be_tagged_and_the_error_says_what_can(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms)  # nothing is deleted, but a janitor may be about to
    with pytest.raises(BelowHorizon, match="cannot be held") as refused:
        tag(table, at_ms=at_ms)
    assert table.keys(table.paths.holds_of("tag")) == []
    oldest_ms = int(str(refused.value).partition("can be held is ")[2].split()[0])
    tag(table, at_ms=oldest_ms)
    age(table)
    assert tagged_ids(table) == [1, 2]


def test_j4_what_died_is_certain_until_shortly_before_its_grace_period_is_over(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    view = table.view()
    kept = Hold("tag", "q3", files=frozenset(fold(view, as_of_ms=at_ms).live.paths()))
    died_ms = view.files[-1].modified_ms
    certain_ms = died_ms + table.config.data_grace_ms - MAX_STORE_GAP_MS

    def oldest(written_ms, hold=kept):
        return find_oldest_certain_ms(view, hold, config=table.config, written_ms=written_ms)

    assert oldest(certain_ms) is None
    assert oldest(certain_ms + 1) == died_ms + STORE_RESOLUTION_MS + MAX_STORE_GAP_MS
    assert oldest(certain_ms + 1, Hold("tag", "q4", files={"another file"})) is None


def test_r3_the_oldest_time_that_can_be_tagged_is_not_below_the_horizon(table):
    at_ms = table.clock.now_ms() - 1
    table.merge(full=True)
    view = table.view()
    kept = Hold("tag", "q3", files=frozenset(fold(view, as_of_ms=at_ms).live.paths()))
    newest_ms = max(death.died_ms for death in find_data_deaths(view).values())
    horizon_ms = newest_ms + DAY_MS
    *others, last = view.files
    view = replace(view, files=(*others, replace(last, log=replace(last.log, horizon_ms=horizon_ms))))
    written_ms = newest_ms + table.config.data_grace_ms
    for asked_ms in (at_ms, None):
        with pytest.raises(BelowHorizon, match=f"can be held is {horizon_ms} "):
            require_certain(view, kept, at_ms=asked_ms, config=table.config, written_ms=written_ms)


# -- what cannot be understood


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{not json",
        b'{"format":2,"state":"active","at":1,"ttl_ms":null,"whole":true}',
        b'{"format":1,"state":"active","at":1,"ttl_ms":null,"whole":1}',
        b'{"format":1,"state":null,"at":1,"ttl_ms":null,"whole":true}',
        b'{"format":1,"state":"active","at":1,"whole":true}',
        b'{"v":1}\n{}',
        b"\xff\n",
    ],
)
def test_j4_a_tag_that_cannot_be_understood_holds_every_data_file(table, body):
    key = table.paths.hold_key("tag", "0" * 32, name="q3")
    table.store.put(key, body)
    table.merge(full=True)
    assert {(w.guard, w.held_by, w.until_ms) for w in age(table).waiting} == {("tag", "q3", None)}
    assert status(table) == "unreadable"
    with pytest.raises(CorruptLog):
        read_tagged(table, "q3")
    assert delete_tag(table, "q3")
    assert status(table) == "ended"
    table.vacuum()
    assert data_count(table) == 3
    age(table, table.config.data_grace_ms + MAX_STORE_GAP_MS)
    assert data_count(table) == 1


def lose_last_line(body):
    return body.rstrip(b"\n").rpartition(b"\n")[0] + b"\n"


DAMAGES = {
    "cut off": lambda body: body[:-20],
    "no state": lambda body: body.replace(b'"active"', b"null"),
    "a line less": lose_last_line,
    "a line twice": lambda body: body + body.removeprefix(lose_last_line(body)),
    "a line less, as its head says": lambda body: lose_last_line(body).replace(b'"f":2', b'"f":1'),
    "a file more, as it says itself": lambda body: body.replace(b'"files":2', b'"files":3'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_j4_a_tag_with_a_damaged_line_holds_every_data_file(table, damage):
    made = tag(table)
    table.append(3)
    table.merge(full=True)
    table.store.put(made.key, damage(table.store.get(made.key).body))
    age(table)
    assert data_count(table) == 4
    delete_tag(table, "q3")
    table.clock.advance(table.config.data_grace_ms - 1)
    table.vacuum()
    assert data_count(table) == 4
    age(table)
    assert data_count(table) == 1


def test_an_object_among_the_tags_that_is_none_holds_everything_and_shows(table):
    table.store.put(f"{table.paths.holds_of('tag')}q3.jsonl", b"{}")
    table.merge(full=True)
    age(table)
    assert data_count(table) == 3
    (listed,) = list_tags(table).holds
    assert (listed.name, listed.state) == ("tag.q3.jsonl", None)
    with pytest.raises(NotFound):
        delete_tag(table, "q3")


def test_an_ended_tag_names_its_files_as_before(table):
    body = table.store.get(tag(table).key).body
    before, after = body.split(b"\n"), end_body(body).split(b"\n")
    assert before[1:] == after[1:]
    assert orjson.loads(after[0])["state"] == "ended"


# -- what it costs


def test_a_janitor_fetches_a_tag_once(table):
    tag(table)
    tag(table, "q4")
    reader = HoldReader()

    def read():
        table.store.calls.clear()
        held = reader.read(table).lasting(data_grace_ms=1)
        return len(held), len(table.store.keys_of("get"))

    assert read() == (2, 2)
    assert read() == (2, 0)
    delete_tag(table, "q4")
    assert read() == (2, 1)
    table.clock.advance(1 + MAX_STORE_GAP_MS)
    assert read() == (1, 0)


def test_a_long_head_is_read_whole(table):
    table.stage([{f"column_{number:04}": number for number in range(3000)} | {"id": 5, "p": "a"}])
    table.flush()
    tag(table, note="x" * 500)
    assert find_tag(table, "q3")[0].file_count == 3


def test_j4_the_janitor_deletes_the_objects_of_tags_that_hold_nothing(table):
    tag(table, "ended")
    tag(table, "lasts")
    delete_tag(table, "ended")

    def sweep():
        listing = list_all(table.store, table.paths.holds_prefix)
        found = TableWalk(listing.store_now_ms, leftovers={"hold": list(listing.objects)})
        done = sweep_leftovers(table.known(), found)
        return done.deleted["hold"], [found.name for found in list_tags(table).holds]

    table.clock.advance(table.config.data_grace_ms + MAX_STORE_GAP_MS - 1)
    assert sweep() == (0, ["ended", "lasts"])
    table.clock.advance(1)
    assert sweep() == (1, ["lasts"])
    assert sweep() == (0, ["lasts"])


def test_j4_the_orphan_sweep_leaves_what_a_tag_names_alone(table):
    """After the log was lost and made anew: what had been replaced is not in it. A person has said that it may go (F5)."""
    tag(table)
    table.store.delete(table.keys(table.paths.log_prefix))
    table.append(3)
    table.clock.advance(DAY_MS)
    table.sweep(policy=FORCED)
    assert tagged_ids(table) == [1, 2]
    delete_tag(table, "q3")
    table.clock.advance(DAY_MS)
    table.sweep(policy=FORCED)
    assert data_count(table) == 1


def test_a_tag_that_was_written_again_as_it_was_holds_from_then_on(table):
    """The same bytes, hence the same ETag, and another time: what ends some time after it was written ends later."""
    tag(table, ttl_ms=10_000)
    reader = HoldReader()
    (before,) = reader.read(table).holds
    table.clock.advance(5_000)
    (key,) = table.keys(table.paths.holds_of("tag"))
    table.store.inner.put(key, table.store.get(key).body)
    (after,) = reader.read(table).holds
    assert after == HoldReader().read(table).holds[0]
    assert after.ends_ms > before.ends_ms

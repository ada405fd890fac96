"""What publications hold, how they are retired and swept, and what an erasure takes back: J4, P5, E5."""

from dataclasses import replace

import pytest
from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.clean.publication_ending import count_withdrawn, retire_idle, withdraw_publications
from icedb_log.holds.erasures import create_erasure
from icedb_log.holds.guards import EVERY_STATE_MS
from icedb_log.holds.tags import PENDING_TTL_MS
from icedb_log.keys import PublicationName, parse_publication_key, publication_id_of
from icedb_log.publish.head import (
    Head,
    Publications,
    Record,
    encode_head,
    encode_record,
    read_head,
    read_publication,
    read_publications,
)
from icedb_log.publish.publications import publish
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.erasure_steps import advance, append_users, clean, find_traces
from icedb_sim.tables.json_publications import JsonPublications, read_published
from icedb_sim.tables.row_files import read_rows
from icedb_sim.tables.small_table import SmallTable

GRACE_MS = 60_000
CHAIN, OTHER = "c" * 32, "d" * 32


@pytest.fixture
def table():
    made = SmallTable(data_grace_ms=GRACE_MS, log_grace_ms=20_000)
    made.append(1)
    made.append(2)
    return made


def published(table):
    made = publish(table.opened("test"), JsonPublications())
    table.clock.advance(1)
    return made


def paths_of(table, publication):
    return {path for state in read_published(table.store, publication) for path in state.paths}


def require_there(table, publication):
    """An engine reads every data file of every state."""
    for path in paths_of(table, publication):
        assert read_rows(table.store, path) is not None


def guards(table):
    return {(waiting.guard, waiting.until_ms is None) for waiting in table.vacuum(dry_run=True).waiting}


def age(table, ms):
    """Let time pass, with a vacuum and a sweep now and then."""
    for _ in range(-(-ms // 15_000)):
        table.clock.advance(15_000)
        table.vacuum()
        sweep(table)


def sweep(table):
    return sweep_leftovers(table.opened(), table.sweep().walk)


def test_p5_what_the_head_shows_is_kept_though_its_record_is_not_there(table):
    made = published(table)
    table.store.delete(table.keys(table.paths.holds_of("publication")))
    assert count_withdrawn(table) == 0
    age(table, GRACE_MS)
    assert {*made.objects} <= {*table.keys(table.paths.published_prefix)}


# -- holding


def test_j4_what_the_current_publication_shows_stays_until_it_has_left_for_a_grace_period(table):
    made = published(table)
    table.merge(full=True)
    table.clock.advance(GRACE_MS - 2000)
    table.vacuum()
    require_there(table, made)
    second = published(table)  # an engine may have been shown the first just before
    for _ in range(4):
        table.clock.advance(GRACE_MS // 4)
        table.vacuum()
        require_there(table, made)
    assert guards(table) == {("publication", False)}
    table.clock.advance(MAX_STORE_GAP_MS + 1)
    assert table.vacuum().deleted_data
    require_there(table, second)


def test_j4_a_publication_that_nobody_asks_for_is_retired_and_holds_for_a_grace_period_more(table):
    made = published(table)
    table.merge(full=True)
    table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS + 10)
    assert guards(table) == {("publication", True)}
    table.vacuum()
    assert read_publication(table) is None
    assert read_head(table).sequence == made.sequence + 1
    table.clock.advance(GRACE_MS)
    table.vacuum()
    require_there(table, made)
    table.clock.advance(MAX_STORE_GAP_MS + 1)
    assert table.vacuum().deleted_data
    again = published(table)
    assert (again.chain, again.sequence) == (made.chain, made.sequence + 2)
    require_there(table, again)


def test_j4_one_that_is_asked_for_is_not_retired(table):
    published(table)
    for number in range(8):
        table.append(10 + number)
        table.merge(full=True)
        table.clock.advance(GRACE_MS // 2)
        table.vacuum()
        assert read_publication(table) is not None
        require_there(table, published(table))


def test_j4_one_is_not_retired_while_another_cannot_be_made(table):
    """A file that no engine may see keeps a writer from going on; what was made before stays."""

    class Failing(JsonPublications):
        def write(self, draft):
            raise ValueError("unfit")

    made = published(table)
    table.merge(full=True)
    for _ in range(6):
        for _ in range(2):
            with pytest.raises(ValueError, match="unfit"):
                publish(table.opened(), Failing())
        table.clock.advance(GRACE_MS // 2)
        table.vacuum()
    assert read_publication(table) == made
    require_there(table, made)
    assert len(table.keys(table.paths.holds_of("publication"))) <= 8
    table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS + 10)
    table.vacuum()
    assert read_publication(table) is None


def test_no_log_file_is_held(table):
    published(table)
    table.merge(full=True)
    table.clock.advance(2 * GRACE_MS)
    assert table.vacuum().deleted_logs


def test_j4_a_first_publication_in_the_making_holds_until_it_is_taken_out(table):
    """Its maker sleeps between its record and the head; the janitor changes the head first."""
    table.merge(full=True)

    def sleep():
        table.clock.advance(GRACE_MS)
        assert not table.vacuum().deleted_data
        assert guards(table) == {("publication", True)}
        table.clock.advance(PENDING_TTL_MS)
        assert not table.vacuum().deleted_data  # it takes the record out, and no more
        table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS)
        assert table.vacuum().deleted_data

    table.store.script = [Fault("put_if_match", None, "/head.json", before=sleep)]
    made = published(table)
    assert made.sequence == 2
    require_there(table, made)


def test_j4_a_head_that_cannot_be_read_holds_everything(table):
    published(table)
    table.merge(full=True)
    table.store.put(table.paths.publication_head_key, b"{")
    table.clock.advance(10 * GRACE_MS)
    assert not table.vacuum().deleted_data


def test_j4_of_a_chain_that_lost_its_head_everything_ends(table):
    made = published(table)
    table.merge(full=True)
    table.store.delete([table.paths.publication_head_key])
    table.clock.advance(2 * GRACE_MS)
    assert not table.vacuum().deleted_data
    assert read_head(table).chain != made.chain
    table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS + 1)
    assert table.vacuum().deleted_data
    sweep(table)
    assert table.keys(table.paths.holds_of("publication")) == table.keys(table.paths.published_prefix) == []


# -- when a publication has left


def record(sequence, modified_ms, *, chain=CHAIN, since_ms=5):
    name = PublicationName(chain, sequence, since_ms, f"{sequence:032x}")
    return Record(name, ObjectInfo(f"p/{chain}.{sequence}.json", "e", 1, modified_ms))


def ends(head, *records):
    found = Publications(head, tuple(records), 10_000_000).find_ends(data_grace_ms=GRACE_MS)
    return [None if end is None else end - GRACE_MS - MAX_STORE_GAP_MS for _, end in found]


def test_j4_a_publication_has_left_when_the_number_after_the_next_is_begun():
    current = replace(Head(CHAIN, 4, modified_ms=900), current=read_publication_like())
    assert ends(current, record(1, 100), record(2, 200), record(3, 300), record(4, 400), record(5, 950)) == [
        300,
        400,
        900,
        None,
        None,
    ]
    assert ends(current, record(1, 100), record(1, 150), record(4, 400)) == [400, 400, None]
    assert ends(current, record(4, 100, chain=OTHER)) == [900], "another chain's of the same number was shown, too"
    retired = Head(CHAIN, 5, modified_ms=900)
    assert ends(retired, record(4, 400), record(5, 500), record(6, 950)) == [900, 900, None]


def read_publication_like():
    table = SmallTable()
    return replace(published(table), publication_id=f"{4:032x}")


def test_j4_another_chain_has_left_when_this_one_began():
    head = Head(CHAIN, 2, modified_ms=900)
    assert ends(head, record(7, 100, chain=OTHER), record(1, 500)) == [500, 900]
    assert ends(head, record(7, 100, chain=OTHER)) == [900]
    assert ends(None, record(1, 100)) == [None]


def test_e5_what_is_withdrawn_holds_nothing():
    head = Head(CHAIN, 2, withdrawn=2, modified_ms=900)
    found = Publications(head, (record(1, 5), record(2, 6), record(3, 7), record(9, 8, chain=OTHER)), 10)
    assert [end for _, end in found.find_ends(data_grace_ms=GRACE_MS)] == [0, 0, None, 0]


def test_j4_records_of_one_time_are_one_hold_and_one_that_is_no_record_holds_everything():
    head = Head(CHAIN, 500, modified_ms=900_000)
    many = [record(number, 1_000 * number, since_ms=number) for number in range(1, 300)]
    holds = Publications(head, (*many, Record(None, ObjectInfo("x", "e", 1, 1))), 0).find_holds(
        data_grace_ms=GRACE_MS, now_ms=0
    )
    assert len(holds) < 100
    assert {hold.since_ms for hold in holds if hold.until_ms is None} == {EVERY_STATE_MS}
    for each, end_ms in Publications(head, tuple(many), 0).find_ends(data_grace_ms=GRACE_MS):
        assert any(h.since_ms <= each.name.since_ms and h.until_ms >= end_ms for h in holds if h.until_ms is not None)


# -- sweeping


def test_p5_objects_go_when_no_publication_that_may_be_read_refers_to_them(table):
    first = published(table)
    table.append(3)
    second = published(table)
    age(table, GRACE_MS // 2)
    assert set(first.objects) <= set(table.keys(table.paths.published_prefix))
    age(table, GRACE_MS + MAX_STORE_GAP_MS)
    left = set(table.keys(table.paths.published_prefix))
    assert left == {*first.objects, *second.objects}  # the second one's record names what it might have referred to
    assert [parse_publication_key(k).sequence for k in table.keys(table.paths.holds_of("publication"))] == [2]
    table.append(4)
    third = published(table)
    age(table, GRACE_MS + MAX_STORE_GAP_MS)
    left = set(table.keys(table.paths.published_prefix))
    assert left == {*second.objects, *third.objects}
    assert first.metadata_key not in left
    require_there(table, third)


def test_p5_what_a_publisher_that_sleeps_may_refer_to_stays(table):
    """It has named it in its record; meanwhile what it goes on from is over for everybody else."""
    first = published(table)
    table.append(3)

    def others():
        for number in range(2):
            table.append(40 + number)
            published(table)
        age(table, GRACE_MS - 1000)
        assert set(first.objects) - {first.metadata_key} <= set(table.keys(table.paths.published_prefix))

    table.store.script = [Fault("put_if_absent", None, "-s0.json", before=others)]
    require_there(table, published(table))


def test_p5_what_a_maker_left_behind_goes(table):
    first = published(table)
    table.append(3)
    table.store.script = [Fault("put_if_match", Effect.DROP, "/head.json")]
    with pytest.raises(Exception, match=r"head\.json"):
        published(table)
    table.append(4)
    last = published(table)
    sweep(table)
    left = {publication_id_of(key) for key in table.keys(table.paths.published_prefix)}
    assert left == {first.publication_id, last.publication_id}


def test_p5_objects_that_land_after_their_record_was_swept_go(table):
    made = published(table)
    key = table.paths.published_key("late.json", sequence=7, publication_id="e" * 32)
    table.store.put(key, b"[]")
    hint = table.paths.version_hint_key
    table.store.put(hint, b"x")
    age(table, 15_000)
    assert set(table.keys(table.paths.published_prefix)) == {*made.objects, hint}


def test_p5_a_sweep_that_sleeps_before_it_deletes_takes_nothing_that_came_since(table):
    for number in range(3, 6):
        table.append(number)
        published(table)
    table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS + 1)
    made = []

    def others():
        for number in range(3):
            table.append(50 + number)
            made.append(published(table))

    table.store.script = [Fault("delete", None, "/metadata/", before=others)]
    sweep(table)
    assert not table.store.script
    for each in made:
        require_there(table, each)


def test_p5_a_head_out_of_a_backup_begins_a_new_chain_when_its_records_are_older(table):
    published(table)
    saved = table.store.get(table.paths.publication_head_key).body
    for number in range(3):
        table.append(60 + number)
        last = published(table)
    table.store.put(table.paths.publication_head_key, saved)
    table.merge(full=True)
    age(table, 2 * GRACE_MS + 2 * MAX_STORE_GAP_MS)
    assert read_head(table).chain != last.chain
    require_there(table, published(table))


def test_p5_what_one_that_lost_does_not_name_stays_when_another_needs_it(table):
    """The record of one that lost could not be deleted, and the time by which it had left moves on with the head."""
    first = published(table)
    lost = table.paths.publication_key(PublicationName(first.chain, 2, first.since_ms, "e" * 32))
    for number in (3, 4):
        table.append(number)
        last = published(table)
    age(table, GRACE_MS + 2 * MAX_STORE_GAP_MS)
    assert [parse_publication_key(key).sequence for key in table.keys(table.paths.holds_of("publication"))] == [3]
    table.store.put(lost, encode_record(table.paths, since_ms=first.since_ms, owner="other", objects=()))
    table.merge(full=True)
    table.clock.advance(GRACE_MS + MAX_STORE_GAP_MS)
    table.vacuum()
    assert read_publication(table) is None  # retired just now: who was shown it may read on
    sweep(table)
    assert {publication_id_of(key) for key in last.objects} != {last.publication_id}
    require_there(table, last)


def test_p5_objects_are_listed_before_records(table):
    made = []
    published(table)
    table.append(3)
    table.store.script = [Fault("list_page", None, "/iceberg/metadata/", before=lambda: made.append(published(table)))]
    sweep(table)
    assert made
    require_there(table, made[0])


def test_status_tells_of_publications(table):
    assert (table.status().published_ms, table.status().publications) == (0, 0)
    made = published(table)
    table.append(3)
    second = published(table)
    assert (table.status().published_ms, table.status().publications) == (second.as_of_ms, 2)
    assert made.as_of_ms < second.as_of_ms


# -- erasures


@pytest.fixture
def users():
    made = SmallTable(data_grace_ms=GRACE_MS, log_grace_ms=20_000)
    append_users(made, "ann", "victim")
    return made


def ask(table):
    erasure_id = create_erasure(table, condition="u = 'victim'", clock=table.clock).erasure_id
    table.clock.advance(2000)
    return erasure_id


def bounds_of(table, name=b"victim"):
    return [key for key in table.keys(table.paths.iceberg_prefix) if name in table.store.get(key).body]


def test_e5_an_erasure_takes_back_what_was_published_and_waits_until_it_is_gone(users):
    published(users)
    append_users(users, "bob")
    first = published(users)
    assert bounds_of(users)
    erasure_id = ask(users)
    advance(users, erasure_id)
    assert read_publication(users) is None
    second = published(users)
    assert not {key for key in bounds_of(users) if publication_id_of(key) == second.publication_id}
    assert count_withdrawn(users) > 0
    while users.vacuum().deleted_data == ():
        users.clock.advance(10_000)
    users.clock.advance(200_000)
    users.vacuum()
    progress = advance(users, erasure_id)
    assert (progress.waits_for, progress.erasure.state) == ("janitor", "deleted")  # nobody has swept yet
    assert progress.waiting_count == len(first.objects) + 1  # and the metadata of the one before
    clean(users)
    assert bounds_of(users) == []
    for _ in range(4):
        progress = advance(users, erasure_id)
        users.clock.advance(200_000)
        clean(users)
    assert progress.erasure.state == "complete"
    assert find_traces(users, b"victim") == []
    require_there(users, published(users))


def test_e5_one_in_the_making_when_the_rows_were_deleted_is_not_shown(users):
    erasure_id = ask(users)

    def erase():
        advance(users, erasure_id)

    users.store.script = [Fault("put_if_match", None, "/iceberg/head.json", before=erase)]
    made = published(users)
    assert made.sequence > 1
    valid = {publication_id_of(key) for key in bounds_of(users)}
    assert made.publication_id not in valid
    sweep(users)
    assert bounds_of(users) == []


def test_e5_what_later_publications_still_refer_to_is_not_waited_for(users):
    published(users)
    withdraw_publications(users, clock=users.clock)
    for user in ("bob", "cid", "dan"):
        first = published(users)
        append_users(users, user)
        age(users, GRACE_MS + 2 * MAX_STORE_GAP_MS)
    last = published(users)
    assert {publication_id_of(key) for key in last.objects} != {last.publication_id}
    assert first.publication_id not in {r.name.publication_id for r in read_publications(users).records[:-2]}
    assert count_withdrawn(users) == 0


def test_e5_withdrawing_twice_changes_the_head_once(users):
    published(users)
    withdraw_publications(users, clock=users.clock)
    head = read_head(users)
    withdraw_publications(users, clock=users.clock)
    assert read_head(users) == head
    assert (head.current, head.withdrawn) == (None, head.sequence)


def test_e5_a_chain_without_a_head_is_withdrawn_as_well(users):
    published(users)
    users.store.delete([users.paths.publication_head_key])
    withdraw_publications(users, clock=users.clock)
    sweep(users)
    assert bounds_of(users) == []


def test_e5_a_table_that_was_never_published_has_no_head(users):
    withdraw_publications(users, clock=users.clock)
    assert users.keys(users.paths.iceberg_prefix) == []


def test_retiring_needs_records(table):
    assert not retire_idle(table, clock=table.clock, data_grace_ms=1, is_holding=True, latest_ms=1 << 50)
    assert read_publications(table).records == ()
    body = encode_record(table.paths, since_ms=0, owner="me", objects=())
    table.store.put(table.paths.publication_key(PublicationName(CHAIN, 1, 0, "a" * 32)), body)
    table.store.put(table.paths.publication_head_key, encode_head(table.paths, Head(CHAIN, 0)))
    assert not retire_idle(table, clock=table.clock, data_grace_ms=1, is_holding=True, latest_ms=table.clock.now_ms())

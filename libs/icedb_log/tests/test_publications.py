"""Publications: P1 to P5, as they are made."""

import pytest
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, CorruptLog, NotFound, Unavailable
from icedb_log.holds.tags import delete_tag
from icedb_log.keys import parse_publication_key, publication_id_of
from icedb_log.log.fold import LONGEST_COMMIT_MS
from icedb_log.publish.head import read_head, read_publication
from icedb_log.publish.publications import MAX_TRIES, publish
from icedb_log.serving.status import read_status
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.json_publications import JsonPublications, read_published
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import drop, make_table, tag

HOUR_MS = 60 * 60 * 1000
HEAD = "/head.json"
RECORD = "/holds/publication."


@pytest.fixture
def table():
    made = SmallTable(data_grace_ms=HOUR_MS, log_grace_ms=HOUR_MS // 2, orphan_age_ms=3 * HOUR_MS)
    made.append(1)
    made.append(2)
    return made


def published(table, writer=None, **opened):
    made = publish(table.opened("test", **opened), writer or JsonPublications())
    table.clock.advance(1)
    return made


def states(table):
    found = read_publication(table)
    return [(each.operation, len(each.paths)) for each in read_published(table.store, found)]


def live_paths(table):
    return set(table.snapshot().live.paths())


def records(table):
    return [parse_publication_key(key) for key in table.keys(table.paths.holds_of("publication"))]


def writes(table):
    return table.store.keys_of("put", "put_if_absent", "put_if_match", "upload", "delete")


# -- the chain


def test_p1_a_first_publication_has_a_state_for_each_log_file(table):
    made = published(table)
    assert states(table)[-1] == ("append", len(live_paths(table)))
    assert read_published(table.store, made)[-1].paths == live_paths(table)
    assert made == read_publication(table)
    assert {publication_id_of(key) for key in made.objects} == {made.publication_id}
    assert made.metadata_key in made.objects
    assert (made.sequence, read_head(table).sequence) == (1, 1)


def test_p1_asking_twice_writes_once(table):
    made = published(table)
    before = len(writes(table))
    calls = len(table.store.calls)
    assert published(table) == made
    assert len(writes(table)) == before
    assert len(table.store.calls) - calls <= 6  # table.json twice (opened, renewed), head, log, tags


def test_p1_what_was_published_never_changes_and_is_gone_on_from(table):
    first = published(table)
    before = read_published(table.store, first)
    table.append(7)
    table.merge(full=True)
    second = published(table)
    after = read_published(table.store, second)
    assert after[: len(before)] == before == read_published(table.store, first)
    assert [each.operation for each in after[len(before) :]] == ["append", "replace"]
    assert after[-1].paths == live_paths(table)
    assert second.chain == first.chain
    assert set(first.objects) - {first.metadata_key} < set(second.objects)


def test_an_empty_table_is_published():
    table = SmallTable()
    made = published(table)
    assert read_published(table.store, made) == []
    table.append(1)
    assert [each.operation for each in read_published(table.store, published(table))] == ["append"]


def test_what_the_janitor_took_from_the_log_makes_no_publication():
    table = SmallTable(data_grace_ms=HOUR_MS, log_grace_ms=HOUR_MS // 4)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    made = published(table)
    table.clock.advance(HOUR_MS // 4 + MAX_STORE_GAP_MS)
    assert table.vacuum().deleted_logs
    assert published(table) == made


def test_a_tag_makes_a_publication_and_its_end_another(table):
    writer = JsonPublications()
    published(table, writer)
    tag(table)
    published(table, writer)
    assert [[each.name for each in draft.tags] for draft in writer.drafts] == [[], ["q3"]]
    assert writer.drafts[1].steps == ()
    delete_tag(table, "q3")
    published(table, writer)
    assert writer.drafts[2].tags == ()


def test_a_writer_that_would_write_something_else_begins_from_nothing_in_the_same_chain(table):
    first = published(table)
    writer = JsonPublications()
    writer.is_fitting = False
    second = published(table, writer)
    assert (second.chain, second.sequence) == (first.chain, first.sequence + 1)
    assert writer.drafts[0].base is None
    assert not set(first.objects) & set(second.objects)


def test_p1_of_two_publishers_at_once_one_loses_and_returns_what_the_other_one_made(table):
    table.store.script = [Fault("put_if_match", None, HEAD, before=lambda: others.append(published(table)))]
    others = []
    mine = published(table)
    assert [mine] == others
    assert len(records(table)) == 2


def test_p1_who_loses_again_and_again_gives_up(table):
    def others():
        table.append(1)
        published(table)
        table.append(1)  # what won is behind again
        tries.append(1)
        table.store.script = [Fault("put_if_match", None, HEAD, before=others)]

    tries = []
    table.store.script = [Fault("put_if_match", None, HEAD, before=others)]
    with pytest.raises(Unavailable, match="others changed"):
        published(table)
    assert len(tries) == MAX_TRIES


def test_p1_two_first_publishers_have_one_chain(table):
    table.store.script = [Fault("put_if_absent", None, HEAD, before=lambda: published(table))]
    table.append(9)
    made = published(table)
    assert {record.chain for record in records(table)} == {made.chain}


def test_j4_one_that_is_asked_for_all_the_time_is_renewed_and_lets_go_what_died(table):
    table.merge(full=True)
    made = published(table)
    table.clock.advance(HOUR_MS // 2 - 1000)
    assert published(table) == made
    table.clock.advance(1000)
    again = published(table)
    assert again.since_ms > made.since_ms
    assert read_published(table.store, again)[-1] == read_published(table.store, made)[-1]


def test_a_tag_that_ends_by_itself_makes_a_publication(table):
    writer = JsonPublications()
    tag(table, ttl_ms=60_000)
    assert published(table, writer).tags_end_ms is not None
    table.clock.advance(59_000)
    published(table, writer)
    table.clock.advance(1000)
    assert published(table, writer).tags_end_ms is None
    assert [[each.name for each in draft.tags] for draft in writer.drafts] == [["q3"], []]


# -- faults


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE])
@pytest.mark.parametrize("key", [HEAD, RECORD, "/metadata/"])
def test_w2_an_answer_that_got_lost_changes_nothing(table, effect, key):
    published(table)
    table.append(5)
    table.store.script = [Fault("put_if_match" if key == HEAD else "put_if_absent", effect, key)]
    made = published(table)
    assert not table.store.script
    assert made == read_publication(table)
    assert read_published(table.store, made)[-1].paths == live_paths(table)


def test_w2_a_head_that_may_still_land_is_told_and_the_next_one_finds_out(table):
    published(table)
    table.append(5)
    table.store.script = [Fault("put_if_match", Effect.DELAY, HEAD)]
    with pytest.raises(CommitOutcomeUnknown):
        published(table)
    before = len(records(table))
    table.store.land_delayed()
    made = published(table)
    assert len(records(table)) == before == 2
    assert read_published(table.store, made)[-1].paths == live_paths(table)


def test_w2_a_head_that_lands_after_another_one_was_faster_changes_nothing(table):
    published(table)
    table.append(5)
    table.store.script = [Fault("put_if_match", Effect.DELAY, HEAD)]
    with pytest.raises(CommitOutcomeUnknown):
        published(table)
    made = published(table)
    table.store.land_delayed()
    assert read_publication(table) == made


def test_a_writer_that_fails_leaves_no_record(table):
    class Failing(JsonPublications):
        def write(self, draft):
            super().write(draft)
            raise Unavailable("no room")

    with pytest.raises(Unavailable, match="no room"):
        published(table, Failing())
    assert records(table) == []
    assert read_publication(table) is None
    assert states_after(table) == live_paths(table)


def states_after(table):
    return read_published(table.store, published(table))[-1].paths


def test_a_record_that_somebody_takes_away_is_told(table):
    def sweep():
        table.store.inner.delete(table.keys(table.paths.holds_of("publication")))

    table.store.script = [Fault("get", None, RECORD, before=sweep)]
    with pytest.raises(CommitConflict, match="this hold was ended"):
        published(table)


def test_p1_a_chain_that_is_lost_begins_anew_with_other_ids(table):
    first = published(table)
    table.store.delete(table.keys(table.paths.iceberg_prefix))
    second = published(table)
    assert second.chain != first.chain
    assert states(table)[-1][1] == len(live_paths(table))


def test_p1_a_publisher_whose_head_is_lost_meanwhile_begins_anew(table):
    def lose():
        table.store.inner.delete(table.keys(table.paths.iceberg_prefix))

    table.store.script = [Fault("put_if_match", None, HEAD, before=lose)]
    made = published(table)
    assert read_publication(table) == made
    assert made.chain in [record.chain for record in records(table)]  # what was tried before goes with a sweep


def test_a_head_that_is_not_understood_says_what_to_do(table):
    published(table)
    table.store.put(table.paths.publication_head_key, b'{"format": 2}')
    with pytest.raises(CorruptLog, match=r"head\.json: not understood.*delete .*/_icedb/iceberg/ whole"):
        published(table)


def test_a_dropped_table_is_not_published():
    table = make_table()
    opened = table.opened()
    drop(table)
    with pytest.raises(NotFound):
        publish(opened, JsonPublications())


# -- J4: what is proven


def test_j4_the_record_is_there_before_the_log_is_read(table):
    table.store.calls.clear()
    made = published(table)
    calls = [(call.method, call.key) for call in table.store.calls]
    record = next(at for at, (method, key) in enumerate(calls) if method == "put_if_absent" and RECORD in key)
    reads = [at for at, (method, key) in enumerate(calls) if method == "list_page" and key.endswith("/_log/")]
    objects = [at for at, (method, key) in enumerate(calls) if method == "put_if_absent" and key in made.objects]
    head = next(at for at, (method, key) in enumerate(calls) if method == "put_if_match" and key.endswith(HEAD))
    assert reads[0] < record < reads[1] < min(objects) <= max(objects) < head


def test_j4_a_publisher_that_slept_before_its_record_tells_no_state_that_may_be_going(table):
    """What its log says died long before the record: a janitor that did not see it may be at it."""
    table.append(3)
    table.merge(full=True)
    table.store.script = [Fault("put_if_absent", None, RECORD, before=lambda: table.clock.advance(2 * HOUR_MS))]
    published(table)
    assert len(states(table)) == 1


def test_j4_history_is_as_long_as_the_log_travels(table):
    first = published(table)
    table.append(3)
    table.merge(full=True)
    table.clock.advance(HOUR_MS // 2 - 2000)
    assert len(read_published(table.store, published(table))) > 1
    table.clock.advance(HOUR_MS // 2)
    table.append(4)
    table.merge(full=True)
    made = published(table)
    assert made.chain == first.chain
    told = read_published(table.store, made)
    assert not {each.key for each in told} & set(first.objects)
    assert [each.operation for each in told][-2:] == ["append", "replace"]
    assert set(told[0].paths) <= live_paths(table) | dead_paths(table)


def dead_paths(table):
    return set(table.snapshot().tombstoned_ms)


def test_j4_a_state_of_which_everything_is_still_there_stays_however_old(table):
    """Who reads what was appended since comes once a week."""
    table.append(3)
    published(table)
    table.clock.advance(7 * 24 * HOUR_MS)
    table.append(4)
    made = published(table)
    assert [each.operation for each in read_published(table.store, made)][-2:] == ["append", "append"]


def publish_wide(table):
    """A table of which a state was published, and that has become wider since; its narrow files are the first two."""
    for number, value in enumerate((1, 2)):
        table.stage([{"id": number, "p": "a", "n": value}])
        table.flush()
        table.clock.advance(1)
    published(table)
    table.stage([{"id": 2, "p": "a", "n": 2.5}])
    table.flush()
    table.clock.advance(1)


def test_merges_take_files_from_before_a_widening_first_until_a_publication_shows_it():
    table = SmallTable(evolution="widen", merge_fan_in=100, target_file_bytes=1024)
    table.clock.advance(HOUR_MS)
    publish_wide(table)
    assert (
        "live data files are older than the wider type of a column, 'n' (DOUBLE)"
        in read_status(table.opened()).held_back
    )
    assert table.merge().input_count >= 2
    assert (table.merge().input_count, read_status(table.opened()).held_back) == (0, "")


def test_a_publication_that_shows_a_widening_proves_that_older_files_are_fit():
    table = SmallTable(evolution="widen", merge_fan_in=100, target_file_bytes=1024)
    publish_wide(table)
    table.clock.advance(LONGEST_COMMIT_MS - 1000)
    published(table)  # a widening may have landed after it was listed
    assert read_status(table.opened()).held_back
    table.append(7)
    table.clock.advance(2000)
    published(table)
    assert not read_status(table.opened()).held_back
    assert not table.merge().commit_count


def test_a_table_that_nobody_asks_for_as_an_iceberg_table_merges_as_ever():
    table = SmallTable(evolution="widen", merge_fan_in=100, target_file_bytes=1024)
    publish_wide(table)
    table.store.delete([table.paths.publication_head_key])
    assert not table.merge().commit_count
    assert not read_status(table.opened()).held_back


def test_a_damaged_head_keeps_no_merge_from_its_work():
    table = SmallTable(evolution="widen", merge_fan_in=100, target_file_bytes=1024)
    publish_wide(table)
    table.store.put(table.paths.publication_head_key, b"{")
    assert not table.merge().commit_count


def test_a_merger_whose_clock_is_behind_a_widening_leaves_its_files_so_that_merges_end():
    table = SmallTable(evolution="widen", merge_fan_in=100, target_file_bytes=1024)
    publish_wide(table)
    now_ms = table.clock.now_ms()
    table.clock.set_wall(now_ms - 1000)
    assert not table.merge().commit_count
    table.clock.set_wall(now_ms)
    assert table.merge().commit_count
    assert not table.merge().commit_count

"""Followers: each append once, across restarts, merges and vacuums; and a clear error where nobody can tell (L1 to L3)."""

import json
from dataclasses import replace

import pytest
from icedb_log.commit.fence import seal
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, InvalidRequest, Overloaded
from icedb_log.feed import follower
from icedb_log.feed.follower import MAX_LEASES_HELD, Follower, PositionLost
from icedb_log.feed.position import Budget, Position, Slice, read_position, slices_between
from icedb_log.holds.leases import read_leases
from icedb_log.keys import parse_log_key
from icedb_sim.tables.row_files import read_rows
from icedb_sim.tables.small_table import SmallTable

LEASE_MS = 100_000


class Reader:
    """A stream: a checkpoint, and what was delivered. ``restart`` forgets everything but the checkpoint."""

    def __init__(self, table, *, lease_ms=LEASE_MS, budget=None, accepts_gaps=False, **start):
        self.table = table
        self.lease_ms = lease_ms
        self.accepts_gaps = accepts_gaps
        self.budget = budget or Budget()
        self.gaps = []
        self.rows = []
        self.restart()
        self.checkpoint = self.write(self.follower.begin(**start))

    def restart(self):
        table = Table.open(self.table, clock=self.table.clock)
        on_gap = self.gaps.append if self.accepts_gaps else None
        self.follower = Follower(table, lease_ms=self.lease_ms, on_gap=on_gap)

    def write(self, position):
        return json.dumps(position.to_json())

    @property
    def position(self):
        return read_position(json.loads(self.checkpoint))

    def plan(self):
        return self.follower.look(self.position, budget=self.budget)

    def deliver(self, end):
        files = self.follower.files_between(self.position, read_position(end.to_json()))
        found = [row["id"] for marker in files for row in read_rows(self.table.store, marker.path)]
        self.rows += found
        self.checkpoint = self.write(end)
        self.table.clock.advance(1)
        return found

    def step(self):
        end = self.plan()
        found = [] if end == self.position else self.deliver(end)
        self.follower.settle(self.position)
        return found

    def drain(self):
        while self.step():
            pass
        return self.rows


def test_each_append_once_from_now_on(table):
    table.append(1)
    reader = Reader(table)
    table.append(2, 3)
    table.append(4)
    assert reader.step() == [2, 3, 4]
    assert reader.step() == []
    table.append(5)
    assert reader.step() == [5]


def test_merges_deletions_and_vacuums_neither_lose_nor_repeat(table):
    reader = Reader(table, lease_ms=0)
    table.append(1)
    table.append(2)
    assert sorted(reader.step()) == [1, 2]
    table.append(3)
    table.merge(full=True)
    table.delete("id = 3")
    table.vacuum()
    assert reader.step() == [3], "as it was appended"
    table.append(4)
    table.merge(full=True)
    assert reader.step() == [4]
    assert reader.position.taken == tuple(sorted(reader.follower.list_appends()))


def test_a_batch_that_was_planned_is_the_same_after_a_restart(table):
    reader = Reader(table)
    table.append(1)
    end = reader.plan()
    table.append(2)
    table.merge(full=True)
    reader.restart()
    assert reader.deliver(end) == [1]
    assert reader.step() == [2]


def test_a_lease_holds_what_a_stream_that_is_down_has_not_seen(table):
    reader = Reader(table)
    table.append(1)
    end = reader.plan()
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + 1)
    table.vacuum()
    assert len(table.view().files) > 1, "held"
    reader.restart()
    assert reader.deliver(end) == [1]
    assert reader.step() == [2]


def test_without_a_lease_a_position_is_lost_after_the_grace_period(table):
    reader = Reader(table, lease_ms=0)
    table.append(1)
    end = reader.plan()
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    reader.restart()
    with pytest.raises(PositionLost, match="is gone, which this position needs"):
        reader.deliver(end)
    with pytest.raises(PositionLost, match="no lease has lasted since"):
        reader.step()


@pytest.mark.parametrize("starts_with_all", [False, True])
def test_a_seal_in_the_place_of_a_log_file_is_no_append_without_rows(table, starts_with_all):
    """Its committer slept before it let its fence go; the next one found nothing at the name of its intent (F1)."""
    table.append(1)
    table.append(2)
    reader = Reader(table, lease_ms=0, starts_with_all=starts_with_all)
    if not starts_with_all:
        table.append(3)
    end = reader.plan()
    names = {name for each in slices_between(reader.position, end) for name in each.logs}
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    for name in names:
        assert seal(table.store, table.paths.named_log_key(name))
    reader.restart()
    with pytest.raises(PositionLost, match="is gone, which this position needs"):
        reader.deliver(end)


@pytest.mark.parametrize(("lease_ms", "first_ms"), [(0, 20_000), (LEASE_MS, 61_000)])
def test_what_a_budget_leaves_is_held_as_it_was_before_or_said_to_be_lost(lease_ms, first_ms):
    """It is merged already: neither a younger lease nor the time of a later look keeps it."""
    table = SmallTable(log_grace_ms=60_000, data_grace_ms=120_000)
    reader = Reader(table, lease_ms=lease_ms, budget=Budget(max_files=1))
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(first_ms)
    assert reader.step() == [1]
    reader.follower.renew_leases()
    table.clock.advance(61_000 if lease_ms else 41_000)
    table.vacuum()
    if lease_ms:
        assert reader.step() == [2]
    else:
        with pytest.raises(PositionLost, match="no lease has lasted since"):
            reader.step()


@pytest.mark.parametrize("lease_ms", [0, LEASE_MS])
def test_what_comes_after_a_time_is_held_since_that_time_or_said_to_be_lost(lease_ms):
    """It may be merged already when the follower begins."""
    table = SmallTable(log_grace_ms=60_000, data_grace_ms=120_000)
    from_ms = table.clock.now_ms()
    table.clock.advance(1)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(30_000)
    reader = Reader(table, lease_ms=lease_ms, starting_ms=from_ms)
    table.clock.advance(31_000)
    table.vacuum()
    if lease_ms:
        assert reader.step() == [1, 2]
    else:
        with pytest.raises(PositionLost, match="no lease has lasted since"):
            reader.step()


def test_who_stays_behind_holds_a_few_leases_and_the_log_as_far_as_it_is_behind():
    table = SmallTable(log_grace_ms=60_000, data_grace_ms=120_000)
    reader = Reader(table, budget=Budget(max_files=1))
    behind, every_ms = 12, 30_000
    for number in range(behind):
        table.append(number)
    for number in range(behind, 60):
        table.append(number)
        table.merge(full=True)
        reader.step()
        table.clock.advance(every_ms)
        reader.follower.renew_leases()
        table.vacuum()
        held = read_leases(table)
        assert 1 <= len(held) <= MAX_LEASES_HELD
        assert table.clock.now_ms() - min(lease.at_ms for lease in held) <= 2 * behind * every_ms
    assert reader.drain() == list(range(60))
    assert len(read_leases(table)) <= 2


def test_a_copied_log_file_is_as_old_as_its_name_says():
    table = SmallTable(log_grace_ms=60_000, data_grace_ms=120_000)
    reader = Reader(table, lease_ms=0, budget=Budget(max_files=1))
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(20_000)
    for key in table.keys(table.paths.log_prefix):
        table.store.put(key, table.store.get(key).body)
    assert reader.step() == [1]
    table.clock.advance(41_000)
    table.vacuum()
    with pytest.raises(PositionLost, match="no lease has lasted since"):
        reader.step()


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_lease_that_ended_is_no_lease(table, is_restarted):
    reader = Reader(table, lease_ms=30_000)
    table.append(1)
    table.merge(full=True)
    table.clock.advance(31_000)
    if is_restarted:
        reader.restart()
    with pytest.raises(PositionLost, match="no lease has lasted since"):
        reader.step()


def test_a_lease_that_ended_is_exchanged_while_the_grace_period_lasts():
    table = SmallTable(log_grace_ms=60_000)
    reader = Reader(table, lease_ms=2000)
    table.clock.advance(15_000)
    reader.follower.renew_leases()
    table.append(1)
    assert reader.plan().lease_id not in {reader.position.lease_id, None}


@pytest.mark.parametrize("error", [BelowHorizon, Overloaded])
def test_a_lease_that_cannot_be_had_leaves_the_grace_periods(table, monkeypatch, error):
    def refuse(*_told, **_how):
        raise error("none now")

    monkeypatch.setattr(follower, "acquire_lease", refuse)
    reader = Reader(table)
    table.append(1)
    assert reader.step() == [1]
    assert reader.position.lease_id is None


def test_a_short_break_needs_no_lease(table):
    reader = Reader(table, lease_ms=0)
    table.append(1)
    table.clock.advance(5_000)
    reader.restart()
    assert reader.step() == [1]


def test_gaps_are_accepted_when_asked_for(table):
    reader = Reader(table, lease_ms=0, accepts_gaps=True)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    table.append(3)
    assert reader.step() == [3]
    assert len(reader.gaps) == 1
    table.append(4)
    assert reader.step() == [4]


def test_a_planned_batch_whose_log_file_is_gone_is_a_gap_for_who_accepts_gaps(table):
    reader = Reader(table, lease_ms=0, accepts_gaps=True)
    table.append(1)
    end = reader.plan()
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    table.append(3)
    reader.restart()
    assert reader.deliver(end) == []
    assert len(reader.gaps) == 1
    assert "is gone, which this position needs" in reader.gaps[0]
    assert reader.drain() == [3]


def test_what_a_budget_has_left_of_an_append_that_is_gone_is_a_gap_for_who_accepts_gaps(table):
    reader = Reader(table, lease_ms=0, accepts_gaps=True, budget=Budget(max_files=1))
    table.stage([{"id": number, "p": str(number)} for number in range(1, 4)])
    table.flush()
    assert reader.step() == [1]
    for number in range(1, 4):
        table.append(9, p=str(number))
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    table.append(4)
    reader.restart()
    assert reader.drain() == [1, 4]
    assert reader.gaps


def test_all_rows_first_and_then_what_is_committed(table):
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.append(3)
    reader = Reader(table, starts_with_all=True)
    table.append(4)
    assert sorted(reader.drain()) == [1, 2, 3, 4]


def test_all_rows_come_in_pieces_across_restarts_merges_and_vacuums(table):
    for number in range(6):
        table.append(number)
    table.merge(full=True)
    for number in range(6, 10):
        table.append(number)
    reader = Reader(table, starts_with_all=True, budget=Budget(max_files=2))
    pieces = [reader.step()]
    table.append(10)
    table.merge(full=True)
    table.vacuum()
    while len(pieces) < 20:
        reader.restart()
        pieces.append(reader.step())
        table.clock.advance(9_000)
        table.vacuum()
    assert sorted(reader.rows) == list(range(11))
    assert len([piece for piece in pieces if piece]) >= 3


@pytest.mark.parametrize("accepts_gaps", [False, True])
def test_a_first_state_that_was_lost_is_not_half_delivered(table, accepts_gaps):
    """Nor is all that is left of it passed over as a gap: most of it is still in the table."""
    for number in range(4):
        table.append(number)
    reader = Reader(table, starts_with_all=True, budget=Budget(max_files=1), lease_ms=0, accepts_gaps=accepts_gaps)
    assert len(reader.step()) == 1
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    reader.restart()
    with pytest.raises(PositionLost):
        reader.step()


def test_a_budget_cuts_between_commits_and_within_one(table):
    reader = Reader(table, budget=Budget(max_files=2))
    table.stage([{"id": number, "p": str(number)} for number in range(5)])
    table.flush()
    table.append(5)
    table.append(6)
    steps = []
    while found := reader.step():
        steps.append(len(found))
        reader.restart()
    assert steps == [2, 2, 2, 1]
    assert reader.rows == list(range(7))


def test_a_budget_of_bytes_delivers_one_file_at_least(table):
    reader = Reader(table, budget=Budget(max_bytes=1))
    table.append(1)
    table.append(2)
    assert [reader.step(), reader.step(), reader.step()] == [[1], [2], []]


def test_a_time_to_begin_from(table):
    table.append(1)
    (first,) = table.view().files
    assert Reader(table, starting_ms=parse_log_key(first.key).time_ms, lease_ms=0).step() == [], "after this time"
    from_ms = table.clock.now_ms()
    table.clock.advance(10)
    table.append(2)
    assert Reader(table, starting_ms=from_ms, lease_ms=0).step() == [2]
    table.append(3)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    with pytest.raises(BelowHorizon, match="may be forgotten already"):
        Reader(table, starting_ms=from_ms)
    with pytest.raises(InvalidRequest, match="in the future"):
        Reader(table, starting_ms=table.clock.now_ms() + 5000)


def test_nothing_after_a_target(table):
    reader = Reader(table)
    table.append(1)
    target = reader.follower.list_appends()
    table.append(2)
    end = reader.follower.look(reader.position, until=target)
    assert reader.deliver(end) == [1]
    table.clock.advance(table.config.log_grace_ms)
    assert reader.follower.look(reader.position, until=target) == reader.position, "it has to come to an end"


def test_an_idle_table_does_not_outlive_its_follower():
    table = SmallTable(log_grace_ms=60_000)
    reader = Reader(table, lease_ms=0)
    for _ in range(10):
        table.clock.advance(table.config.log_grace_ms // 2)
        assert reader.step() == []
    table.append(1)
    assert reader.step() == [1]


def test_leases_are_renewed_exchanged_and_given_back(table):
    reader = Reader(table, lease_ms=LEASE_MS)
    for number in range(30):
        table.append(number)
        reader.step()
        table.clock.advance(table.config.log_grace_ms // 2)
        reader.follower.renew_leases()
        held = read_leases(table)
        assert 1 <= len(held) <= 2
        assert table.clock.now_ms() - min(lease.at_ms for lease in held) <= 3 * table.config.log_grace_ms
    assert reader.rows == list(range(30))


def test_a_lease_of_a_planned_batch_outlives_the_settling_of_the_one_before(table):
    reader = Reader(table)
    table.append(1)
    reader.step()
    before = reader.position
    table.clock.advance(2 * table.config.log_grace_ms)
    table.append(2)
    end = reader.plan()
    assert end.lease_id != before.lease_id
    reader.follower.settle(before)
    assert end.lease_id in {lease.lease_id for lease in read_leases(table)}


def test_who_comes_back_for_a_planned_batch_renews_its_lease_first(table):
    reader = Reader(table)
    table.append(1)
    end = reader.plan()
    table.clock.advance(LEASE_MS - 1000)
    reader.restart()
    assert reader.deliver(end) == [1]
    (lease,) = read_leases(table)
    assert lease.expires_ms >= table.clock.now_ms() + LEASE_MS - 1000


def test_a_renewal_finds_that_a_lease_has_ended(table):
    reader = Reader(table, lease_ms=2000)
    table.clock.advance(15_000)
    reader.follower.renew_leases()
    table.append(1)
    with pytest.raises(PositionLost):
        reader.step()


def test_another_table_of_the_name_is_not_followed(table):
    reader = Reader(table)
    reader.checkpoint = json.dumps({**json.loads(reader.checkpoint), "number": 2})
    with pytest.raises(PositionLost, match="another one"):
        reader.step()


def test_a_rebuilt_log_ends_a_position(table):
    reader = Reader(table)
    table.has_footers = True
    table.rebuild(is_forced=True)
    table.merge(full=True)
    with pytest.raises(PositionLost, match="made anew"):
        reader.step()
    anew = Reader(table)
    table.append(1)
    assert anew.step() == [1]


def test_a_checkpoint_keeps_its_form():
    position = Position(
        3, 7, ("a", "b"), lease_id="f", rebuilt="r2", open=Slice(("c",), is_state=True, first=3, last=9)
    )
    said = {
        "format": 1,
        "number": 3,
        "read_ms": 7,
        "taken": ["a", "b"],
        "rebuilt": "r2",
        "lease": "f",
        "open": {"logs": ["c"], "state": True, "done": 3},
    }
    assert position.to_json() == said
    assert read_position(said).open == Slice(("c",), is_state=True, first=3)
    assert replace(position, lease_id=None, open=None).to_json().keys() == said.keys() - {"lease", "open"}
    with pytest.raises(InvalidRequest, match=r"format: Input should be 1\): use the release"):
        read_position(said | {"format": 2})


def test_a_checkpoint_of_another_release_is_refused():
    with pytest.raises(InvalidRequest, match="not written by this release"):
        read_position({"format": 2})


def test_what_lies_between_positions():
    def at(*taken, opened=None):
        return Position("", 0, taken, open=opened)

    def piece(name, done, *, is_state=False):
        return Slice((name,), is_state, done)

    def between(start, end):
        return [(each.logs[0], each.first, each.last) for each in slices_between(start, end)]

    assert between(at("a"), at("a")) == []
    assert between(at("a", "b"), at("b", "c")) == [("c", 0, None)]
    assert between(at(), at("a", opened=piece("b", 2))) == [("a", 0, None), ("b", 0, 2)]
    assert between(at(opened=piece("b", 2)), at(opened=piece("b", 3))) == [("b", 2, 3)]
    assert between(at(opened=piece("b", 2)), at("b", "c")) == [("b", 2, None), ("c", 0, None)]
    assert between(at(opened=piece("b", 2)), at("b", opened=piece("c", 1))) == [("b", 2, None), ("c", 0, 1)]
    state = piece("m", 4, is_state=True)
    assert between(at("a", opened=state), at("a", "b")) == [("m", 4, None), ("b", 0, None)]
    assert between(at("a", opened=piece("m", 4, is_state=True)), at("a", opened=state)) == []

"""Steps of the state machine that read: time travel, tags, leases, changes between two times, conditions."""

from collections import Counter

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
)
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, InvalidRequest, NotFound
from icedb_log.holds.leases import acquire_lease, release_lease, renew_lease
from icedb_log.holds.tags import create_tag, delete_tag
from table_model import NAMES, PLACES, TableModel, plain, present


class Readers(TableModel):
    """What readers ask, and what they hold."""

    @present
    @rule(back_ms=st.sampled_from([0, 1, 3, 1000, 10_000, 30_000, 100_000]), number=st.integers(0, 30))
    def travel(self, back_ms, number):
        times = [time for time, _ in self.history[1:]] or [self.clock.now_ms()]
        at_ms = min(
            times[number % len(times)] + 1 if number % 2 else self.clock.now_ms() - back_ms, self.clock.now_ms()
        )
        if at_ms <= self.erased_ms:
            return
        try:
            found = self.read(as_of=at_ms)
        except BelowHorizon:
            assert not self.must_hold(at_ms), f"{at_ms} is refused too early"
            event("refused below the horizon")
            return
        event("time travel")
        assert found == Counter(map(plain, self.state_at(at_ms)))

    @present
    @rule(name=st.sampled_from(NAMES), ttl_s=st.sampled_from([None, 30, 3600]))
    def tag(self, name, ttl_s):
        self._forget()
        if name in self.tags:
            with pytest.raises(InvalidRequest):
                create_tag(Table.open(self.table, clock=self.clock, reader=self.table.reader()), name)
            return
        ttl_ms = None if ttl_s is None else ttl_s * 1000
        create_tag(
            Table.open(self.table, clock=self.clock, reader=self.table.reader()),
            name,
            ttl_ms=ttl_ms,
        )
        ends_ms = self.clock.now_ms() + (ttl_ms or 10**12)
        self.tags[name] = (list(self.live), ends_ms)
        self.clock.advance(1)

    @present
    @precondition(lambda self: self.tags)
    @rule(number=st.integers(0, 1))
    def delete_tag(self, number):
        name = sorted(self.tags)[number % len(self.tags)]
        assert delete_tag(self.table, name) or self.tags[name][1] <= self.clock.now_ms()
        del self.tags[name]

    @present
    @rule(ttl_s=st.sampled_from([10, 120, 3600]))
    def lease(self, ttl_s):
        held = acquire_lease(
            Table.open(self.table, clock=self.clock, reader=self.table.reader()),
            ttl_ms=ttl_s * 1000,
        )
        self.leases[held.lease_id] = (held.at_ms, self.clock.now_ms() + ttl_s * 1000)
        self.clock.advance(1)

    @present
    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 3), is_renewed=st.booleans())
    def end_or_renew_lease(self, number, is_renewed):
        lease_id = sorted(self.leases)[number % len(self.leases)]
        at_ms, until_ms = self.leases.pop(lease_id)
        if not is_renewed:
            release_lease(self.table, lease_id)
            return
        try:
            renew_lease(self.table, lease_id, clock=self.clock, ttl_ms=60_000)
        except NotFound:
            assert until_ms <= self.clock.now_ms()
            return
        self.leases[lease_id] = (at_ms, self.clock.now_ms() + 60_000)

    def _forget(self):
        now = self.clock.now_ms()
        self.tags = {name: found for name, found in self.tags.items() if found[1] > now}
        self.leases = {name: found for name, found in self.leases.items() if found[1] > now}

    @present
    @rule(number=st.integers(0, 20))
    def changes(self, number):
        times = [time for time, _ in self.history[1:]]
        if not times:
            return
        from_ms = min(times[number % len(times)] + 1, self.clock.now_ms())
        if from_ms <= self.erased_ms:
            return
        try:
            found = self.client.changes("events", from_=from_ms)
        except BelowHorizon:
            assert not self.must_hold(from_ms)
            return
        before, after = Counter(map(plain, self.state_at(from_ms))), Counter(map(plain, self.live))
        count = sum(file.row_count for file in found.added) - sum(file.row_count for file in found.removed)
        assert count == after.total() - before.total()
        removed = [self.rows_of(file) for file in found.removed]
        if None not in removed:
            added = sum(map(self.rows_of, found.added), Counter())
            assert before + added == after + sum(removed, Counter())
        event("changes")

    @present
    @rule(low=st.integers(0, 30), place=st.sampled_from([*PLACES, "nope"]))
    def read_some(self, low, place):
        quoted = place.replace("'", "''")
        found = self.query(where=f"id >= {low} AND p = '{quoted}'")
        assert found == Counter(plain(row) for row in self.live if row["id"] >= low and row["p"] == place)
        found = self.query(partitions={"p": [place]})
        assert found == Counter(plain(row) for row in self.live if row["p"] == place)
        query = "SELECT count(*) FROM events"
        total = self.client.query(query).fetchall() if self.live else [(0,)]
        assert total[0][0] == len(self.live)

"""Rebuilds after random histories: who knows what was live gets exactly that, and nothing else is written (B1, B3)."""

import contextlib
import random
from collections import Counter
from itertools import count

import pytest
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.holds.tags import create_tag
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import read_rows
from icedb_sim.tables.small_table import SmallTable

STEPS = 26
SEEDS = 10
AGES = ("1", "500", "15000", "61000", "210000")


class History:
    """A table to which random things happen. What would make a rebuild unsure is counted."""

    def __init__(self, seed, *, with_crashes, with_removals, with_tags):
        self.dice = random.Random(seed)
        self.table = SmallTable(has_footers=True)
        self.numbers = count(1)
        self.options = (with_crashes, with_removals, with_tags)

    def run(self):
        crashes, removals, tags = self.options
        steps = [self.append] * 8 + [self.merge] * 5 + [self.delete, self.vacuum, self.vacuum, self.wait, self.wait]
        steps += [self.crash] * (4 if crashes else 0) + [self.drop] * (2 if removals else 0)
        steps += [self.tag] * (1 if tags else 0)
        for _ in range(STEPS):
            with contextlib.suppress(IceDBError, Crash):
                self.dice.choice(steps)()
            self.table.store.script.clear()
            self.table.clock.advance(1)
        return self.table

    def append(self):
        ids = [next(self.numbers) for _ in range(self.dice.randint(1, 4))]
        self.table.append(*ids, p=self.dice.choice("ab"))

    def merge(self):
        self.table.merge(full=self.dice.random() < 0.5)

    def delete(self):
        """Delete a row; the last one of a file goes without a trace, as with a partition."""
        number = self.dice.randint(1, 30)
        rows = [read_rows(self.table.store, marker.path) for marker in self.table.snapshot().live]
        if self.options[1] or not any([row["id"] for row in each] == [number] for each in rows):
            self.table.delete(f"id = {number}")

    def drop(self):
        self.table.drop(self.dice.choice(("p=a", "p=b")))

    def vacuum(self):
        self.table.vacuum()

    def wait(self):
        self.table.clock.advance(int(self.dice.choice(AGES)))

    def tag(self):
        """Keep what is live now, but not what will replace it."""
        name = f"p{self.table.clock.now_ms()}"
        create_tag(Table.open(self.table, clock=self.table.clock, reader=self.table.reader()), name)

    def crash(self):
        effect = self.dice.choice((Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.DROP))
        method, key = self.dice.choice((("put_if_absent", "_log/"), ("put", "_data/")))
        self.table.store.script = [Fault(method, effect, key)]
        self.dice.choice((self.append, self.append, self.merge, self.delete))()


def destroy(table, dice, how):
    """Lose or damage the log; return how many of its files."""
    keys = table.keys(table.paths.log_prefix)
    chosen = keys if how == "all" else [key for key in keys if dice.random() < 0.4]
    for key in chosen:
        body = table.store.get(key).body
        kind = "delete" if how == "all" else dice.choice(("delete", "truncate", "garbage", "empty"))
        if kind == "delete":
            table.store.delete([key])
        elif kind == "truncate":
            table.store.put(key, body[: dice.randint(1, len(body) - 1)])
        else:
            table.store.put(key, b"" if kind == "empty" else b"\x00garbage" + body[9:])
    return len(chosen)


def look(table, **options):
    return table.rebuild(is_dry_run=True, is_forced=True, **options).plan


def leave_what_was_dead(table, live):
    """Return the files that a person leaves who knows what was live; a file that is left gives its inputs back."""
    leave = set()
    while wrong := {each.key for each in look(table, leave=tuple(leave)).of("waiting")} - live - leave:
        leave |= {key.removeprefix(table.paths.data_prefix) for key in wrong}
    return tuple(sorted(leave))


@pytest.mark.parametrize("how", ["all", "some"])
@pytest.mark.parametrize("with_crashes", [False, True])
@pytest.mark.parametrize("with_removals", [False, True])
@pytest.mark.parametrize("with_tags", [False, True])
def test_who_knows_what_was_live_gets_exactly_that(how, with_crashes, with_removals, with_tags):
    for seed in range(SEEDS):
        options = {"with_crashes": with_crashes, "with_removals": with_removals, "with_tags": with_tags}
        history = History(f"{seed}/{options}", **options)
        table = history.run()
        truth = Counter(table.ids())
        live = {marker.path for marker in table.snapshot().live}
        damaged = destroy(table, history.dice, how)
        place = f"seed {seed} {options} {how} {damaged}"
        leave = leave_what_was_dead(table, live)
        plan = look(table, take=("*",), leave=leave)
        rows = plan.live_rows + plan.rows_of("taken")
        result = table.rebuild(is_forced=True, take=("*",), leave=leave)
        got = Counter(table.ids())
        assert (result.plan.digest, rows) == (plan.digest, got.total()), place
        # What the log alone had said to be dead, it says no more: a removal, or a file of which no row was left.
        back = got - truth if with_removals and how == "some" else Counter()
        assert got - back == truth, place

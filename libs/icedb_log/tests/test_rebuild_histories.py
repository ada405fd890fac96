"""Rebuilds after random histories: no row comes twice or gets lost but in files that the report names (B1 to B3)."""

import contextlib
import random
from collections import Counter
from itertools import count

import pytest
from icedb_log.clean.pins import create_pin
from icedb_log.errors import IceDBError
from icedb_log.store.object_store import list_all
from icedb_log.table.table import Table
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import read_rows
from icedb_sim.tables.small_table import SmallTable

STEPS = 26
SEEDS = 10
AGES = ("1", "500", "15000", "61000", "210000")


class History:
    """A table to which random things happen. What would make a rebuild unsure is counted."""

    def __init__(self, seed, *, with_crashes, with_removals, with_pins):
        self.dice = random.Random(seed)
        self.table = SmallTable(has_footers=True)
        self.numbers = count(1)
        self.options = (with_crashes, with_removals, with_pins)

    def run(self):
        crashes, removals, pins = self.options
        steps = [self.append] * 8 + [self.merge] * 5 + [self.delete, self.vacuum, self.vacuum, self.wait, self.wait]
        steps += [self.crash] * (4 if crashes else 0) + [self.drop] * (2 if removals else 0)
        steps += [self.pin] * (1 if pins else 0)
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

    def pin(self):
        """Keep what is live now, but not what will replace it."""
        name = f"p{self.table.clock.now_ms()}"
        create_pin(Table.open(self.table, clock=self.table.clock, reader=self.table.reader()), name)

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


def rows_of(table, keys):
    there = {info.key for info in list_all(table.store, table.paths.data_prefix).objects}
    return Counter(row["id"] for key in keys if key in there for row in read_rows(table.store, key))


def check(table, truth, result, *, with_crashes, with_removals):
    """Compare with the truth; what differs must be in files that the report names."""
    report = result.report
    got = Counter(table.ids())
    back = {number: times for number, times in got.items() if number not in truth}
    twice = {number: times - truth[number] for number, times in got.items() if 0 < truth[number] < times}
    lost = truth - got
    undecided = [key for choice in report.choices for key in (*choice.inputs, *choice.outputs)]
    if not undecided and not with_crashes:
        assert not twice, sorted(twice)
        assert not lost, sorted(lost)
        assert with_removals or not back, sorted(back)
    flushes = noted(report, "young_flushes", "old_flushes", "old_merges")
    assert not Counter(twice) - rows_of(table, [*undecided, *flushes]), sorted(twice)
    assert not lost - rows_of(table, undecided), sorted(lost)
    named = [*undecided, *flushes, *(noted(report, "removals") if with_removals else ())]
    assert not Counter(back) - rows_of(table, named), sorted(back)


def noted(report, *kinds):
    return [key for note in report.notes if note.kind in kinds for key in note.files]


@pytest.mark.parametrize("how", ["all", "some"])
@pytest.mark.parametrize("with_crashes", [False, True])
@pytest.mark.parametrize("with_removals", [False, True])
@pytest.mark.parametrize("with_pins", [False, True])
def test_no_row_comes_twice_or_gets_lost_but_where_the_report_says(how, with_crashes, with_removals, with_pins):
    for seed in range(SEEDS):
        options = {"with_crashes": with_crashes, "with_removals": with_removals, "with_pins": with_pins}
        history = History(f"{seed}/{options}", **options)
        table = history.run()
        truth = Counter(table.ids())
        damaged = destroy(table, history.dice, how)
        result = table.rebuild(decision="likely", is_forced=True)
        try:
            check(table, truth, result, with_crashes=with_crashes, with_removals=with_removals)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} {options} {how} {damaged}: {error}") from error

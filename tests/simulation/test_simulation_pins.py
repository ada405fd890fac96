"""Pins and kept versions in the simulation: they hold, and each rule switched off is noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.pin import PIN_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 150

# Noticed by one schedule in dozens or hundreds: tests of their own break these rules, in libs/icedb_log/tests
# (test_pin_faults.py, test_guards.py, test_holds.py).
RARE = {
    "pins are read before the log",
    "a pin is not proven",
    "a pin is proven by a log that was read before it was there",
    "a pending pin holds nothing",
    "with fewer commits than versions nothing is kept",
    "one version too few is kept",
}


def test_pins_and_versions_hold_in_many_schedules():
    totals = Counter()
    for seed in range(6):
        totals.update(run_schedule(seed, Cast.parse("pinners:2")).counters)
    assert totals["pins"] > 10


@pytest.mark.parametrize(
    "mutation",
    [m for m in PIN_RULES if not m.is_harmless and m.name not in RARE],
    ids=lambda m: f"{m.rule}: {m.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None

"""Appends of other jobs and a follower in the simulation: each row once, and each rule switched off is noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.catalogue import ALL_RULES
from icedb_sim.rules.outsider import OUTSIDER_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 300

NAMES = {rule.name for rule in OUTSIDER_RULES}

# Noticed by one schedule in hundreds: tests of their own break these rules (libs/icedb_log/tests/test_append.py).
RARE = {"the log is read before the fence is taken", "files may be of any age"}


def test_each_row_is_there_and_delivered_once_in_many_schedules():
    totals = Counter()
    for seed in range(10):
        totals.update(run_schedule(seed, Cast.parse("outsiders:2")).counters)
    assert totals["delivered_rows"] > 40


@pytest.mark.parametrize(
    "mutation",
    [m for m in ALL_RULES if m.name in NAMES - RARE and not m.is_harmless],
    ids=lambda m: f"{m.rule}: {m.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None

"""A view in the simulation: it gets each commit of its source once, and each rule switched off is noticed."""

from collections import Counter

import pytest
from icedb_sim.rules.catalogue import ALL_RULES
from icedb_sim.rules.view import VIEW_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 300

NAMES = {rule.name for rule in VIEW_RULES}

# Noticed by one schedule in hundreds: tests of their own break these rules (libs/icedb_log/tests/test_feeds.py, test_feed_races.py).
RARE = {
    "the source is listed before the fence is taken",
    "reasons that are not written down are forgotten by the next feed",
}


def test_a_view_has_each_commit_once_in_many_schedules():
    totals = Counter()
    for seed in range(12):
        totals.update(run_schedule(seed, Cast.parse("feeders:2")).counters)
    assert totals["fed_rows"] > 100


@pytest.mark.parametrize(
    "mutation",
    [m for m in ALL_RULES if m.name in NAMES - RARE and not m.is_harmless],
    ids=lambda m: f"{m.rule}: {m.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None

"""Ids that are used again for other content: none of it vanishes, and each rule switched off is noticed (I8)."""

from collections import Counter

import pytest
from icedb_sim.rules.by_test import TEST_OF_RULE
from icedb_sim.rules.reuse import REUSE_RULES
from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule
from icedb_sim.simulation.search import find_failure

SCHEDULES = 200


def test_i8_other_content_is_kept_in_many_schedules():
    totals = Counter()
    for seed in range(8):
        totals.update(run_schedule(seed, Cast.parse("reusers:2")).counters)
    assert totals["conflicts"] > 5


@pytest.mark.parametrize(
    "mutation",
    [rule for rule in REUSE_RULES if rule.name not in TEST_OF_RULE],
    ids=lambda rule: f"{rule.rule}: {rule.name}",
)
def test_a_rule_switched_off_is_noticed(mutation, seeds_for):
    assert find_failure(mutation, seeds_for(mutation, SCHEDULES)) is not None

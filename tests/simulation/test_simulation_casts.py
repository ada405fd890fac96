"""More schedules, with whatever mix their seeds draw: half of a minute's worth, beside those of test_simulation.py."""

from collections import Counter
from functools import cache

import pytest
from icedb_log.errors import NotFound
from icedb_sim.simulation import actors
from icedb_sim.simulation.profiles import PROFILES
from icedb_sim.simulation.scenario import PLAIN, Mix
from icedb_sim.simulation.scenarios import SCENARIOS, draw_mix
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import check_seeds

BLOCK = 50
FIRST = 10_000
BLOCKS = 8


@pytest.mark.parametrize("first", range(FIRST, FIRST + BLOCKS * BLOCK, BLOCK))
def test_every_rule_holds_in_many_schedules(first):
    assert check_seeds(range(first, first + BLOCK))["commits"] > 2 * BLOCK


def test_these_schedules_have_every_scenario():
    seen = Counter(name for seed in range(FIRST, FIRST + BLOCKS * BLOCK) for name, _ in draw_mix(seed).sizes)
    assert seen.keys() >= SCENARIOS.keys() - PROFILES.keys()
    assert len(seen.keys() & PROFILES.keys()) > len(PROFILES) // 2, "of profiles, which come with fewer seeds, most"


@cache
def plain_hash():
    return run_schedule(3, PLAIN).trace_hash


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_same_seed_is_the_same_schedule_with_any_scenario(name):
    mix = Mix.of({name: 1})
    run = run_schedule(3, mix)
    assert run == run_schedule(3, mix)
    assert run.trace_hash != plain_hash()


def test_a_reader_of_a_table_that_is_there_misses_nothing(monkeypatch):
    def miss(_sim, _reader):
        raise NotFound("a log file")

    monkeypatch.setattr(actors, "_read", miss)
    with pytest.raises(ScheduleFailed, match="misses something"):
        for seed in range(20):
            run_schedule(seed, PLAIN)

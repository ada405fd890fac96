"""Schedules with each scenario: the same seed is the same schedule."""

from functools import cache

import pytest
from icedb_log.errors import NotFound
from icedb_sim.simulation import actors
from icedb_sim.simulation.scenario import PLAIN, Mix
from icedb_sim.simulation.scenarios import SCENARIOS
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule


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

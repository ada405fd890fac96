"""More schedules, with whatever cast their seeds draw: half of a minute's worth, beside those of test_simulation.py."""

from collections import Counter

import pytest
from icedb_log.errors import NotFound
from icedb_sim.simulation import actors
from icedb_sim.simulation.cast import PLAIN, Cast
from icedb_sim.simulation.profiles import PROFILES
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import check_seeds
from icedb_sim.simulation.troupes import TROUPES, draw_cast

BLOCK = 50
FIRST = 10_000
BLOCKS = 8


@pytest.mark.parametrize("first", range(FIRST, FIRST + BLOCKS * BLOCK, BLOCK))
def test_every_rule_holds_in_many_schedules(first):
    assert check_seeds(range(first, first + BLOCK))["commits"] > 2 * BLOCK


def test_these_schedules_have_every_troupe():
    seen = Counter(name for seed in range(FIRST, FIRST + BLOCKS * BLOCK) for name, _ in draw_cast(seed).sizes)
    assert seen.keys() >= TROUPES.keys() - PROFILES.keys()
    assert len(seen.keys() & PROFILES.keys()) > len(PROFILES) // 2, "of moods, which come with fewer seeds, most"


@pytest.mark.parametrize("name", sorted(TROUPES))
def test_the_same_seed_is_the_same_schedule_with_any_troupe(name):
    cast = Cast.of({name: 1})
    assert run_schedule(3, cast) == run_schedule(3, cast)
    assert run_schedule(3, cast).trace_hash != run_schedule(3, PLAIN).trace_hash


def test_a_reader_of_a_table_that_is_there_misses_nothing(monkeypatch):
    def miss(_sim, _reader):
        raise NotFound("a log file")

    monkeypatch.setattr(actors, "_read", miss)
    with pytest.raises(ScheduleFailed, match="misses something"):
        for seed in range(20):
            run_schedule(seed, PLAIN)

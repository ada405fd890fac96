"""Actors that do in another way what others do: send again what was sent, read from nothing, flush by size."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Final

from icedb_log.ingest.flush import FlushLimits, flush_table
from icedb_log.jobs import SizeClass
from icedb_log.log.fold import fold

from icedb_sim.simulation.actors import Simulation, enqueue, make_batch, try_run
from icedb_sim.simulation.data import SimBatchWriter
from icedb_sim.simulation.facts import SimBatch
from icedb_sim.simulation.world import Actor, SimClock

_AHEAD: Final = (0, 3, 5)
"""How far the clocks of hasty producers are ahead, in what is allowed."""

SMALL: Final = SizeClass("small", decoded_bytes=60, row_count=1000)
"""Batches of the simulation have 25 to 140 bytes."""
BY_SIZE: Final = (SMALL, replace(SMALL, takes="large"))

_OLDEST: Final = 5
"""A batch is sent again until it is this many grace periods of log files old."""


def send_again_for_ever(sim: Simulation, actor: Actor) -> None:
    """Enqueue batches, and enqueue them again for minutes, as long as the table has to know them.

    Where clocks are wrong some of theirs are ahead by more than is allowed: such a batch is refused, and sent again.
    """
    config, rng = sim.world.settings.config, sim.world.rng
    ahead_ms = rng.choice(_AHEAD) * config.id_skew_ms if sim.world.settings.skew_ms else 0
    clock = SimClock(sim.world, ahead_ms)
    mine: dict[int, SimBatch] = {}
    while True:
        now_ms = sim.world.now_ms
        recent = [batch for at_ms, batch in mine.items() if now_ms < at_ms + _OLDEST * config.log_grace_ms]
        if recent and rng.random() < 0.7:
            batch = rng.choice(recent)
        else:
            batch = mine[now_ms] = make_batch(sim, clock)
        try_run(sim, actor, partial(enqueue, sim, batch))


def flush_by_size_for_ever(sim: Simulation, actor: Actor, *, sizes: Sequence[SizeClass] = BY_SIZE) -> None:
    """Flush small batches and one large one in turn, and remember what was found to be of the other size (I6)."""
    clock = SimClock(sim.world, actor.skew_ms)
    reader, writer = sim.make_reader(clock), SimBatchWriter(sim.store, clock)
    left_out: dict[str, frozenset[str]] = {}

    def run(size: SizeClass) -> None:
        known = left_out.get(size.takes, frozenset())
        table = sim.open(clock, owner=actor.name, reader=reader)
        result = flush_table(table, writer, limits=FlushLimits(sizes=size, skip=known))
        left_out[size.takes] = known.union(result.left_out)

    for size in cycle(sizes):
        try_run(sim, actor, partial(run, size))


def read_afresh_for_ever(sim: Simulation, actor: Actor) -> None:
    """Read the newest state as a process does that has just begun, without anything in a cache."""
    clock = SimClock(sim.world, actor.skew_ms)
    while True:
        try_run(sim, actor, partial(_read, sim, clock))


def _read(sim: Simulation, clock: SimClock) -> None:
    mark = sim.model.begin_read()
    view = sim.make_reader(clock).read()
    sim.model.check_read(mark, view, fold(view))

"""Leases as readers take them, in the simulation: who takes, renews and ends them, and whether they hold.

They are the scenario ``lessees``.
"""

from dataclasses import replace
from typing import Final

from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from icedb_log.holds.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.actors import ORDINARY, Simulation
from icedb_sim.simulation.scenario import Part, Scenario
from icedb_sim.simulation.settings import PATHS, Settings
from icedb_sim.simulation.world import Actor, SimClock, Violation

LESSEE: Final = "lessee"
STALL_RATE: Final = 0.02
MAX_LEASES: Final = 4
_OLDEST: Final = 6
_STEPS: Final = 1000


class LeaseScenario(Scenario):
    """So many actors take leases as readers do, and rely on them."""

    name = "lessees"

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Return settings under which leases matter."""
        return with_lessees(settings, seed)

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return the lessees."""
        return (Part(LESSEE, count, lease_for_ever),)


def with_lessees(settings: Settings, seed: int) -> Settings:
    """Return settings for those who take leases: who sleeps, and grace periods, follow from the seed.

    Log files mostly stay as long as data files: otherwise a time is below the horizon (R3) before its lease has
    anything to be proven against.
    """
    change = {"data_grace_ms": settings.config.log_grace_ms} if seed % 8 < 6 else {}
    return replace(
        settings,
        config=settings.config.model_copy(update=change),
        sleepy_kind=(settings.sleepy_kind, LESSEE, "janitor")[seed % 3],
        faults=replace(settings.faults, stall=max(settings.faults.stall, STALL_RATE)),
        readers=0,
        lease_holders=0,
        operators=0,
        steps=_STEPS,
    )


def lease_for_ever(sim: Simulation, actor: Actor) -> None:
    """Take a lease, read under it, renew it, and end or forget it, again and again."""
    clock, rng = SimClock(sim.world, actor.skew_ms), sim.world.rng
    reader = sim.make_reader(clock)
    while True:
        try:
            lease = _take(sim, clock, reader)
            while lease is not None:
                lease = _go_on(sim, clock, reader, lease)
        except ORDINARY as error:
            sim.world.note(type(error).__name__, actor.kind)
        sim.world.sleep(int(rng.random() * sim.world.settings.think_ms))


def _take(sim: Simulation, clock: SimClock, reader: LogReader) -> Lease | None:
    rng, config = sim.world.rng, sim.world.settings.config
    ttl_ms = rng.randint(1, 6) * config.log_grace_ms
    # Mostly just before something died: that is what a janitor may be about to delete.
    died_ms = sorted({t for t in fold(reader.read()).tombstoned_ms.values() if t <= sim.world.now_ms})
    past_ms = sim.world.now_ms - int(rng.random() * 1.5 * config.data_grace_ms)
    at_ms = rng.choice((None, past_ms, *(t - 1 for t in died_ms[:_OLDEST])))
    try:
        lease = acquire_lease(
            sim.open(clock, reader=reader),
            ttl_ms=ttl_ms,
            at_ms=at_ms,
            max_leases=MAX_LEASES,
        )
    except (BelowHorizon, InvalidRequest, Overloaded):
        return None
    if _is_over(sim, lease):
        return None
    view = _read(sim, reader, lease)
    if view is None:
        return None
    # Both what was live at its time and what is live now are held from now on.
    states = (fold(view, as_of_ms=lease.at_ms), fold(view))
    sim.model.hold_lease(lease, [marker.path for snapshot in states for marker in snapshot.live])
    return lease


def _go_on(sim: Simulation, clock: SimClock, reader: LogReader, lease: Lease) -> Lease | None:
    """Read under a lease, and renew, end or forget it; ``None``: it is not relied on any more."""
    model, rng = sim.model, sim.world.rng
    clock.sleep_ms(int(rng.random() * 2 * sim.world.settings.config.log_grace_ms))
    if not _is_over(sim, lease):
        _read(sim, reader, lease)
    dice = rng.random()
    if dice < 0.15:
        model.leases.pop(lease.lease_id, None)
        release_lease(TableStore(sim.store, PATHS), lease.lease_id)
        return None
    if dice < 0.25:
        return None
    ttl_ms = rng.randint(1, 6) * sim.world.settings.config.log_grace_ms
    try:
        renewed = renew_lease(TableStore(sim.store, PATHS), lease.lease_id, clock=clock, ttl_ms=ttl_ms)
    except NotFound:
        return None
    except (CommitOutcomeUnknown, Unavailable, CommitConflict):
        return lease  # it is told to renew again
    if lease.lease_id not in model.leases:
        raise Violation(f"lease {lease.lease_id} was renewed after its end, and its holder believes in it (J4)")
    return renewed


def _read(sim: Simulation, reader: LogReader, lease: Lease) -> LogView | None:
    """Read what is held; ``None``: the lease ended meanwhile. Raises Violation."""
    model = sim.model
    mark = model.begin_read()
    view = reader.read()
    try:
        snapshot = fold(view, as_of_ms=lease.at_ms)
    except BelowHorizon as error:
        if _is_over(sim, lease):
            return None
        raise Violation(f"the time of lease {lease.lease_id} cannot be read: {error} (J4)") from error
    gone = [marker.path for marker in snapshot.live if not sim.store.inner.holds(marker.path)]
    if _is_over(sim, lease):
        return None
    if gone:
        raise Violation(f"{gone[0]} is gone while lease {lease.lease_id} at {lease.at_ms} holds it (J4)")
    model.check_past_read(mark, lease.at_ms, replace(snapshot, is_stable=False))
    return view


def _is_over(sim: Simulation, lease: Lease) -> bool:
    resolution_ms = sim.world.settings.resolution_ms
    return lease.expires_ms <= sim.world.now_ms // resolution_ms * resolution_ms

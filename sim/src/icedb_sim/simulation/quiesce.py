"""The quiet after the storm: faults stop, the workers run until nothing is left to do, and the rest is counted.

What must be left: every acknowledged batch, live or in quarantine, and nothing that nobody needs.
"""

from typing import Final

from icedb_log.clean.orphans import sweep_orphans
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.ingest.flush import flush_table
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.table.table import Table

from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.data import SimBatchWriter, SimGroupMerger
from icedb_sim.simulation.settings import ANY_SHARE, PATHS, SEAL_AGE_MS
from icedb_sim.simulation.world import SimClock, Violation

_ROUNDS: Final = 5
_NOTES: Final = ("/_icedb/clock", "/_icedb/orphans.json", "/_icedb/fence/ingest.json", "/_icedb/fence/merge.json")
"""What runs write for themselves, whatever they find."""
_MAX_RUNS: Final = 200


def quiesce(sim: Simulation) -> None:
    """Bring a table to rest and check what is left.

    Raises:
        Violation: Something got lost, or garbage stays for ever.
    """
    sim.store.stop_faults()
    sim.world.land_all()
    for calm in sim.at_calm:
        calm(sim)
    clock = SimClock(sim.world)
    reader = sim.make_reader(clock)
    mark = sim.model.begin_read()
    view = reader.read()
    sim.model.check_read(mark, view, fold(view))
    audit = sim.audit_watch.open()

    def vacuum() -> object:
        return vacuum_table(Table.open(sim.store, PATHS, clock=clock, reader=reader), audit=audit)

    def sweep() -> object:
        return sweep_orphans(Table.open(sim.store, PATHS, clock=clock, reader=reader), policy=ANY_SHARE, audit=audit)

    runs = (vacuum, sweep, sweep)
    worker = sim.make_reader(clock)
    before: frozenset[ObjectInfo] | None = None
    for _ in range(_ROUNDS):
        _work_off(sim, clock, worker)
        for run in runs:
            # A worker with a fast clock may have put a tombstone's time into the future.
            sim.world.now_ms += SEAL_AGE_MS + 2 * sim.world.settings.clock_error_ms
            run()
        after = _content(sim)
        if after == before:
            break  # nothing is too young any more: another round would do nothing either
        before = after
    mark = sim.model.begin_read()
    view = reader.read()
    snapshot = fold(view)
    sim.model.check_read(mark, view, snapshot)
    _check_rest(sim, named={marker.path for file in view.files for marker in file.log.markers})
    live = {marker.path for marker in snapshot.live}
    if live != sim.model.live_truth():
        raise Violation(
            f"at rest {sorted(live ^ sim.model.live_truth())[:1]} is live in one of log and truth only (S1)"
        )
    if snapshot.tombstoned_ms or snapshot.log_tombstoned_ms or any(file.log.is_seal for file in view.files):
        raise Violation(f"at rest the log still has tombstones or seals: {snapshot} (J2, J3)")


def _content(sim: Simulation) -> frozenset[ObjectInfo]:
    return frozenset(info for info in list_all(sim.store.inner, "").objects if not info.key.endswith(_NOTES))


def _work_off(sim: Simulation, clock: SimClock, reader: LogReader) -> None:
    writer, merger = SimBatchWriter(sim.store, clock), SimGroupMerger(sim.store, clock)
    for _ in range(_MAX_RUNS):
        flushed = flush_table(Table.open(sim.store, PATHS, clock=clock, owner="rest", reader=reader), writer)
        if not (flushed.has_more or flushed.committed_key or flushed.rejected or flushed.duplicate_count):
            break
    else:
        raise Violation("flushes never come to rest (I2)")
    for _ in range(_MAX_RUNS):
        merged = merge_table(Table.open(sim.store, PATHS, clock=clock, owner="rest", reader=reader), merger)
        if merged.committed_key is None:
            break
    else:
        raise Violation("merges never come to rest (M1)")
    for work_off in sim.at_rest:
        work_off(sim)


def _check_rest(sim: Simulation, *, named: set[str]) -> None:
    model, inner = sim.model, sim.store.inner
    for batch in model.batches.values():
        if batch.is_acknowledged and batch.batch_id not in model.committed and not batch.is_quarantined:
            raise Violation(f"batch {batch.batch_id} was accepted and is nowhere (I1)")
    staged = inner.list_page(PATHS.staging_prefix).objects
    if staged:
        raise Violation(f"{staged[0].key} never leaves staging (I2)")
    unnamed = [info.key for info in inner.list_page(PATHS.data_prefix).objects if info.key not in named]
    if unnamed:
        raise Violation(f"{unnamed[0]} stays for ever, though no log file names it (J5)")

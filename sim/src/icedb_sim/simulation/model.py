"""What must be true, kept beside the store: the oracle of the simulation.

Told about every change that the store takes, in order. It never forgets a log file, so its fold is the truth that
every later reader has to agree with, whatever was merged, stripped and deleted meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson
from icedb_log.batch_ids import parse_batch_id_ms
from icedb_log.clock import Clock
from icedb_log.holds.leases import Lease
from icedb_log.ingest.quarantine import is_reason
from icedb_log.keys import log_name, parse_group_key, parse_staged_key
from icedb_log.log.codec import decode_log_file, decode_log_head
from icedb_log.log.fold import Snapshot
from icedb_log.log.reader import LogHeadReader, LogReader
from icedb_log.model import LogFile, LogHead, LogView
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore

from icedb_sim.simulation.data import UNREADABLE, read_staged_ids
from icedb_sim.simulation.facts import Counters, HeldLease, KeptBatches, Landed, Promise, ReadMark, RowTruth, SimBatch
from icedb_sim.simulation.settings import PATHS, Settings
from icedb_sim.simulation.wire import WireFile, read_live, read_wire
from icedb_sim.simulation.world import Violation


def _staged_alone(batch_id: str) -> str:
    return PATHS.staging_key(batch_id=batch_id, staging_format="ndjson")


class SimModel:
    """The truth about one table.

    Args:
        settings: Of the schedule.
        store_now_ms: The store's clock.
        exists: Whether an object is in the store.
    """

    def __init__(self, settings: Settings, *, store_now_ms: Callable[[], int], exists: Callable[[str], bool]) -> None:
        self.settings = settings
        self.counters = Counters()
        self.batches: dict[str, SimBatch] = {}
        self.others: dict[str, bytes] = {}
        """By id: other content that was staged under it (I8)."""
        self.others_accepted: set[str] = set()
        self.imported: dict[str, str] = {}
        """By key of a data file: the source whose rows it has, which counts as a batch."""
        self.groups: dict[str, tuple[str, ...]] = {}
        """By key of each group that was ever staged: the ids in it."""
        self._kept = KeptBatches(self.batches, self.others, store_now_ms)
        self._rows = RowTruth(self.batches)
        self.files = self._rows.files
        self.removed = self._rows.removed
        self.named: set[str] = set()
        self.dead: set[str] = set()
        self.committed: dict[str, int] = {}
        self._carried_out: dict[str, str] = {}
        self.refused: dict[str, int] = {}
        self.retriable: set[str] = set()
        self.retried: set[str] = set()
        self.landed: list[Landed] = []
        self.logs: dict[str, WireFile] = {}
        self._decoded: dict[tuple[str, bytes], LogFile] = {}
        self._heads: dict[tuple[str, bytes], LogHead] = {}
        self.types: dict[str, str] = {}
        self._first_types: dict[str, str] = {}
        self._since_ms: dict[str, int] = {}
        self.leases: dict[str, HeldLease] = {}
        self.lease_ends: dict[str, int] = {}
        self._promises: deque[Promise] = deque()
        self._store_now_ms = store_now_ms
        self._exists = exists
        self._log_died_ms: dict[str, int] = {}
        self._deleted_logs_died_ms = 0
        self._stable_ms = 0
        self.is_blind = False
        self.unpromised: set[str] = set()

    def decode(self, key: str, body: bytes) -> LogFile:
        """Return what the library makes of a log file; the same bytes are decoded once."""
        found = self._decoded.get((key, body))
        if found is None:
            found = self._decoded[key, body] = decode_log_file(key, body)
        return found

    def decode_head(self, key: str, body: bytes) -> LogHead:
        """Return what the library makes of the first bytes of a log file; the same bytes are decoded once."""
        found = self._heads.get((key, body))
        if found is None:
            found = self._heads[key, body] = decode_log_head(key, body)
        return found

    # What the store took.

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written, and check what it changes."""
        if self.is_blind and not key.startswith(PATHS.data_prefix):
            return  # a table that is being purged, or was: what is there counts for nothing
        if key.startswith(PATHS.log_prefix):
            self._on_log_put(key, body)
        elif key.startswith(PATHS.data_prefix):
            self.files[key] = tuple(orjson.loads(body))
            self.removed.on_data(PATHS.partition_of(key), self.files[key])
        elif key.startswith(PATHS.quarantine_prefix):
            self._kept.on_put(key, body)
            if is_reason(key):
                self._on_reason_put(orjson.loads(body))
        elif key.startswith(PATHS.staging_prefix):
            self._on_staging_put(key, body)
        elif key.startswith(PATHS.holds_of("lease")):
            self._on_lease_put(key, body)

    def on_delete(self, key: str) -> None:
        """Check that an object may go."""
        if self.is_blind:
            return
        if key.startswith(PATHS.log_prefix):
            self._on_log_delete(key)
        elif key.startswith(PATHS.data_prefix):
            self._on_data_delete(key)
        elif key.startswith(PATHS.quarantine_prefix):
            self._kept.on_delete(key, retention_ms=self.settings.config.quarantine_retention_ms)
        elif key.startswith(PATHS.staging_prefix):
            for batch_id in self.groups.get(key) or (key.rpartition("/")[2].partition(".")[0],):
                self._on_staged_delete(key, batch_id)

    def _on_staged_delete(self, key: str, batch_id: str) -> None:
        batch = self.batches[batch_id]
        is_kept = batch.is_quarantined and batch.batch_id in self._kept
        is_elsewhere = key in self.groups and self._exists(_staged_alone(batch_id))
        if not (is_kept or is_elsewhere or batch.batch_id in self.committed or batch_id in self.unpromised):
            raise Violation(f"batch {batch_id} left staging, but is neither committed nor in quarantine (I1, I2)")

    def _on_log_put(self, key: str, body: bytes) -> None:
        file = read_wire(key, body)
        ours = self.decode(key, body)
        if file.markers != tuple((m.path, m.is_live) for m in ours.markers):
            raise Violation(f"{key}: a strict reader of the wire reads it otherwise")
        if key in self.logs:
            self.counters.strips += 1
            self.logs[key] = file
            return
        self.logs[key] = file
        if b'"seal":true' in body:
            self.counters.seals += 1
            return
        self.counters.commits += 1
        self.counters.merges += bool(file.log_tombstones)
        if file.time_ms <= self._stable_ms:
            raise Violation(f"{key} landed below {self._stable_ms}, a time that was said to be stable (R3)")
        self._grow_types(key, file)
        file = replace(file, batch_ids=(*file.batch_ids, *self._find_imported(file)))
        self._answer_requests(key, ours)
        self._refuse_batches(key, file)
        self._commit_batches(key, file)
        self.landed.append(Landed(file.time_ms, file.batch_ids))
        for path, time_ms in file.log_tombstones.items():
            self._log_died_ms[path] = min(time_ms, self._log_died_ms.get(path, time_ms))
        for path, is_live in file.markers:
            if path not in self.named and is_live and not self._exists(path):
                raise Violation(f"{key} names {path}, which does not exist (W1, W3, J5)")
            (self.named if is_live else self.dead).add(path)
        self._check_truth(key, file.time_ms, commit_id=ours.commit_id or "")

    def _answer_requests(self, key: str, log: LogFile) -> None:
        for request_id, outcome in log.requests.items():
            if outcome["log"] == log_name(key) and self._carried_out.setdefault(request_id, key) != key:
                raise Violation(f"{key} carries request {request_id} out, as {self._carried_out[request_id]} did (M7)")

    def check_repeated(self, request_id: str, key: str) -> None:
        """Check what an actor is told that an earlier run of its request did, unless the table is being purged."""
        if not self.is_blind and self._carried_out.get(request_id) != key:
            raise Violation(f"request {request_id} is said to have been carried out by {key} (M7)")

    def _on_staging_put(self, key: str, body: bytes) -> None:
        if parse_group_key(key) is not None:
            self.groups[key] = read_staged_ids(key, body)
            return
        batch_id = parse_staged_key(key).batch_id
        if batch_id in self.batches:
            return
        # A retry: the body of a refused batch under a fresh id. Its rows count as the refused one's did.
        (old,) = [
            batch
            for own_id, batch in self.batches.items()
            if own_id == batch.batch_id and batch.body == body and batch.retry_id == batch_id
        ]
        self.batches[batch_id] = SimBatch(batch_id, body, old.rows, old.bad_count, is_acknowledged=True)
        self.counters.retries += 1

    def _on_reason_put(self, reason: dict[str, Any]) -> None:
        if reason["kind"] == "conflict":
            return
        batch = self.batches[reason["batch_id"]]
        if reason.get("retry") is not None:
            batch.retry_id = reason["retry"]
            return
        if reason["kind"] == "rows":
            # One that was in flight may land when an operator has dealt with the refusal, but never over it.
            is_decided = batch.batch_id in self.committed or self._may_come_again(batch.batch_id)
            if batch.has_reason and not is_decided:
                raise Violation(f"batch {batch.batch_id} was refused whole, but {reason} says otherwise (I5)")
            batch.bad_rows_key = reason["payload"]
            self.counters.quarantined_rows += 1
            return
        if batch.batch_id not in self.refused:
            raise Violation(f"batch {batch.batch_id} is in quarantine, but no commit refused it (I5)")
        batch.is_quarantined, batch.has_reason, batch.bad_rows_key = True, True, ""
        self.counters.quarantined += 1
        if batch.body not in UNREADABLE and batch.batch_id not in self.others:
            self.retriable.add(reason["batch_id"])

    def _find_imported(self, file: WireFile) -> tuple[str, ...]:
        """Return the sources of which a commit makes a data file live for the first time."""
        new = (path for path, is_live in file.markers if is_live and path not in self.named)
        return tuple(self.imported[path] for path in new if path in self.imported)

    def _refuse_batches(self, key: str, file: WireFile) -> None:
        others = [log for other, log in self.logs.items() if other != key]
        for batch_id in map(self.first_id, file.refused_ids):
            if any(batch_id in map(self.first_id, (*log.batch_ids, *log.refused_ids)) for log in others):
                raise Violation(f"batch {batch_id} is refused by {key}, but the log has decided already (I3, I5)")
            self.refused[batch_id] = self._store_now_ms()

    def first_id(self, batch_id: str) -> str:
        """Return the id of the first try of a batch: those of one key have different ones (I7)."""
        batch = self.batches.get(batch_id)
        return batch_id if batch is None else batch.batch_id

    def _grow_types(self, key: str, file: WireFile) -> None:
        for column, sql_type in file.schema.items():
            if self._first_types.setdefault(column, sql_type) != sql_type:
                raise Violation(f"{key}: column {column} is {sql_type}, but was {self._first_types[column]} (S2)")
            self.types.setdefault(column, sql_type)
        for column, (sql_type, since_ms) in file.widened.items():
            self.counters.widenings += self.types[column] != sql_type
            self.types[column] = sql_type
            if self._since_ms.setdefault(column, since_ms) != since_ms:
                raise Violation(
                    f"{key}: column {column} became wider at {since_ms}, not at {self._since_ms[column]} (S2)"
                )

    def _commit_batches(self, key: str, file: WireFile) -> None:
        for batch_id in map(self.first_id, file.batch_ids):
            if batch_id in self.committed:
                raise Violation(f"batch {batch_id} was committed twice, the second time by {key} (I3)")
            if self.batches[batch_id].body in UNREADABLE:
                raise Violation(f"batch {batch_id} cannot be read, but {key} commits it (I5)")
            batch = self.batches[batch_id]
            if batch.bad_count and not (batch.bad_rows_key and self._exists(batch.bad_rows_key)):
                raise Violation(f"batch {batch_id} is committed by {key} without a trace of its bad rows (I5)")
            self._check_not_refused(key, batch_id)
            self.committed[batch_id] = len(self.landed)

    def _check_not_refused(self, key: str, batch_id: str) -> None:
        refused_ms = self.refused.get(batch_id)
        if refused_ms is not None and not self._may_come_again(batch_id):
            raise Violation(f"batch {batch_id} was refused at {refused_ms}, but {key} commits it (I5)")

    def _may_come_again(self, batch_id: str) -> bool:
        """Whether a batch was refused for an id from far in the future, and the log has forgotten that."""
        refused_ms = self.refused.get(batch_id)
        if refused_ms is None or parse_batch_id_ms(batch_id) <= refused_ms + self.settings.config.id_skew_ms:
            return False
        return not any(batch_id in map(self.first_id, log.refused_ids) for log in self.logs.values())

    def _check_truth(self, key: str, time_ms: int, *, commit_id: str) -> None:
        rows = self._rows.rows_of(self.live_truth())
        intent = self.removed.intents.get(commit_id)
        removal = (time_ms, len(self.landed) - 1)
        self.counters.removals += self._rows.check_commit(key, rows, self.committed, intent=intent, removal=removal)

    def _on_lease_put(self, key: str, body: bytes) -> None:
        value = orjson.loads(body)
        lease_id = key.removeprefix(PATHS.holds_of("lease")).removesuffix(".jsonl")
        now_ms = self._store_now_ms()
        held = self.leases.get(lease_id)
        if held is not None and self.lease_ends[lease_id] <= now_ms:
            del self.leases[lease_id]  # renewed too late: the holder may not rely on it
        self.lease_ends[lease_id] = max(now_ms + value["ttl_ms"], value.get("until", 0))

    def _on_log_delete(self, key: str) -> None:
        file = self.logs.pop(key)
        died_ms = self._log_died_ms.get(key)
        if died_ms is None:
            if file.markers or file.batch_ids or file.refused_ids:
                raise Violation(f"{key} was deleted, but no log file ever tombstoned it (J1)")
            return
        self.counters.deleted_logs += 1
        self._deleted_logs_died_ms = max(self._deleted_logs_died_ms, died_ms)

    def _on_data_delete(self, key: str) -> None:
        now_ms = self._store_now_ms()
        if key in self.named and key not in self.dead:
            raise Violation(f"{key} was deleted while it is live (J1, J2)")
        self.check_promises(key)
        for lease_id, held in self.leases.items():
            if self.lease_ends[lease_id] > now_ms and key in held.live:
                raise Violation(f"{key} was deleted while lease {lease_id} at {held.lease.at_ms} tags it (J4)")
        self.counters.deleted_data += key in self.named
        self.counters.deleted_orphans += key not in self.named

    def check_promises(self, key: str) -> None:
        """Check that no read counts on a data file that is deleted."""
        now_ms = self._store_now_ms()
        while self._promises and self._promises[0].until_ms <= now_ms:
            self._promises.popleft()
        for promise in self._promises:
            if promise.until_ms > now_ms and key in promise.live:
                raise Violation(
                    f"{key} was deleted {promise.until_ms - now_ms} ms before the grace of a read was over (J1)"
                )

    # What readers saw.

    def begin_read(self) -> ReadMark:
        """Remember what a read that begins now has to see."""
        return ReadMark(len(self.landed), frozenset(self.committed), dict(self.types))

    def check_read(self, mark: ReadMark, view: LogView, snapshot: Snapshot) -> None:
        """Check a read of the newest state: each row once, nothing missing, every file there."""
        self.counters.reads += 1
        live = frozenset(marker.path for marker in snapshot.live)
        self._check_types(mark, snapshot)
        self._rows.check_read(self._rows.rows_of(live), mark.committed, self.committed, "a read", mark=mark)
        now_ms = self._store_now_ms()
        until_ms = view.store_now_ms + self.settings.config.data_grace_ms
        if now_ms < until_ms:
            for path in live:
                if not self._exists(path):
                    raise Violation(f"{path} is live in a read, but gone {until_ms - now_ms} ms within grace (J1, R2)")
            self._promises.append(Promise(until_ms, live))
        else:
            raise Violation(f"a read took {now_ms - view.store_now_ms} ms, longer than the grace period (R2)")
        by_wire = read_live((file.key, [(m.path, m.is_live) for m in file.log.markers]) for file in view.files)
        if by_wire != live:
            odd = sorted(by_wire ^ live)
            raise Violation(f"a reader that takes the last marker sees {odd[0]} otherwise (S1)")

    def check_shown(self, mark: ReadMark, live: Iterable[str]) -> None:
        """Check what engines are shown as the newest state: each row once, nothing missing."""
        self._rows.check_read(self._rows.rows_of(live), mark.committed, self.committed, "a publication", mark=mark)

    def check_past_read(self, mark: ReadMark, at_ms: int, snapshot: Snapshot) -> None:
        """Check a read at a past time: what had been committed with a time up to then."""
        self.counters.past_reads += 1
        expected = [batch_id for entry in self.landed if entry.time_ms <= at_ms for batch_id in entry.batch_ids]
        before = [
            batch_id
            for entry in self.landed[: mark.commit_count]
            if entry.time_ms <= at_ms
            for batch_id in entry.batch_ids
        ]
        rows = self._rows.rows_of(marker.path for marker in snapshot.live)
        self._rows.check_read(rows, before, expected, f"a read at {at_ms}", mark=mark, at_ms=at_ms)
        if snapshot.is_stable:
            self._stable_ms = max(self._stable_ms, at_ms)

    def check_refused_read(self, at_ms: int) -> None:
        """Check that a refusal of a past time has a reason (R3)."""
        self.counters.refused_past_reads += 1
        if at_ms >= self._deleted_logs_died_ms:
            raise Violation(
                f"a read at {at_ms} was refused, but no log file that died after {self._deleted_logs_died_ms} is gone"
            )

    def hold_lease(self, lease: Lease, live: Iterable[str]) -> None:
        """Rely on a lease from now on."""
        self.counters.leases += 1
        self.leases[lease.lease_id] = HeldLease(lease, frozenset(live))

    def is_lease_held(self, lease_id: str) -> bool:
        """Return whether its holder may still rely on a lease."""
        return lease_id in self.leases and self.lease_ends[lease_id] > self._store_now_ms()

    def _check_types(self, mark: ReadMark, snapshot: Snapshot) -> None:
        for column in mark.types.keys() | snapshot.schema.keys():
            seen = snapshot.schema.get(column)
            # A column that came while the read went on may have been narrow first, and have become wide since.
            least = mark.types[column] if column in mark.types else self._first_types.get(column)
            if seen not in (mark.types.get(column), least, self.types.get(column)):
                raise Violation(
                    f"column {column} is {seen} in a read, but {self.types.get(column)} by all commits (S2)"
                )

    def live_truth(self) -> set[str]:
        """Return the data files that are live by everything that ever landed (S1)."""
        return self.named - self.dead


class SimReader(LogReader):
    """Fetches in the actor's own greenlet, and takes from the others what the same bytes decode to.

    Args:
        store: The store, as the actor sees it.
        model: Has decoded everything that ever landed.
        clock: The actor's.
        max_refresh_ms: How long a read may take (R2).
    """

    def __init__(self, store: ObjectStore, model: SimModel, *, clock: Clock, max_refresh_ms: int) -> None:
        super().__init__(TableStore(store, PATHS), clock=clock, max_refresh_ms=max_refresh_ms, fetch=1)
        self._model = model

    @cached_property
    def heads(self) -> LogHeadReader:
        """Reads the heads of the same log."""
        return _HeadReader(self._store, self._model, clock=self._clock, max_refresh_ms=self._max_refresh_ms)

    def _decode(self, key: str, body: bytes) -> LogFile:
        return self._model.decode(key, body)


class _HeadReader(LogHeadReader):
    def __init__(self, store: ObjectStore, model: SimModel, *, clock: Clock, max_refresh_ms: int) -> None:
        super().__init__(TableStore(store, PATHS), clock=clock, max_refresh_ms=max_refresh_ms, fetch=1)
        self._model = model

    def _decode(self, key: str, body: bytes) -> LogHead:
        return self._model.decode_head(key, body)

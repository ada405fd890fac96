"""The janitor's audit: what was deleted, when, why, and which guards had let it go (rule J10).

Written ahead: what is about to be deleted stands below ``_icedb/audit/`` before the store is asked to delete it, and is
written once more with what became of it. If the first cannot be written, nothing is deleted; if the second cannot, the
entry stays ``announced``: the object may have gone or not. A run that deletes nothing writes nothing. Nothing about a
decision is read from here: an audit that is lost costs knowledge, never data.

Each chunk of a run is an object of its own, JSON lines: the run first, then one line for each object. So memory is
bounded by a chunk, and nothing is written more than twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, Final, Literal

import orjson

from icedb_log.clean.deletion import CHUNK_KEYS, Deleted, Deleter, Doomed
from icedb_log.clean.guards import Holds
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError
from icedb_log.keys import TablePaths, parse_audit_key
from icedb_log.store.object_store import FailedDelete, ObjectInfo, ObjectStore
from icedb_log.store.store_clock import check_store_clock

RunKind = Literal["vacuum", "orphans", "leftovers", "purge"]
"""What the run was."""
Outcome = Literal["announced", "deleted", "failed"]
"""What became of an object; ``announced``: the run was cut off, the object may have gone or not."""

AuditStep = Literal["announce", "conclude"]
"""Which of the two writes failed. A label of metrics."""

MAX_FOUND: Final = 100
"""Names of each kind of holder that a run's first line lists; their number is always there."""
MAX_REASON_CHARS: Final = 300


@cache
def _release() -> str:
    """Return the release of this library; it is looked up in files."""
    return version("icedb-log")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run decided by.

    Attributes:
        kind: What the run is.
        store_now_ms: The store's clock that ages were measured against, unix ms.
        policy: Grace periods and other bounds, by the names of the configuration's fields, e.g. ``data_grace_ms``.
        found: What was there that can hold objects: ids or names by kind (``leases``, ``pins``, ``versions``,
            ``intents``, ``wanted_logs``). Never anything personal.
    """

    kind: RunKind
    store_now_ms: int
    policy: Mapping[str, int | None]
    found: Mapping[str, Sequence[str]] = field(default_factory=dict)


def found_holds(holds: Holds) -> dict[str, tuple[str, ...]]:
    """Return what was found that can hold objects, as a run's first line has it."""
    found = {
        "leases": tuple(lease.lease_id for lease in holds.leases),
        "pins": tuple(pin.name for pin in holds.pins),
        "versions": () if holds.versions is None else (str(holds.versions.count),),
        "intents": tuple(commit.path for commit in holds.commits),
        "wanted_logs": tuple(sorted(holds.wanted_logs)),
    }
    return {kind: names for kind, names in found.items() if names}


class AuditLog:
    """Where runs of one table are written down, and by whom. ``begin`` one :class:`RunAudit` for each run.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: Makes the ids of runs.
        owner: Who deletes, e.g. ``janitor@host:123``.
        on_problem: Told when something could not be written: an announcement, and the run stops; or outcomes, and it
            goes on.
    """

    def __init__(
        self,
        store: ObjectStore,
        paths: TablePaths,
        *,
        clock: Clock,
        owner: str,
        on_problem: Callable[[AuditStep, IceDBError], None] | None = None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._owner = owner
        self._on_problem = on_problem

    def begin(self, facts: RunFacts) -> "RunAudit":
        """Return the audit of one run; nothing is written before its first object is to be deleted."""
        run_id = self._clock.new_id()
        head = {
            "run": run_id,
            "kind": facts.kind,
            "table": self._paths.name,
            "owner": self._owner,
            "release": _release(),
            "store_now_ms": facts.store_now_ms,
            "policy": dict(facts.policy),
            "found": {
                kind: {"count": len(names), "names": list(names[:MAX_FOUND])} for kind, names in facts.found.items()
            },
        }
        return RunAudit(self._store, self._paths, head=head, on_problem=self._on_problem)


class RunAudit:
    """The audit of one run; an :class:`icedb_log.clean.deletion.Audit`. For one thread.

    Args:
        store: The object store.
        paths: Keys of the table.
        head: The first line of each part.
        on_problem: Told when something could not be written.
    """

    def __init__(
        self,
        store: ObjectStore,
        paths: TablePaths,
        *,
        head: Mapping[str, Any],
        on_problem: Callable[[AuditStep, IceDBError], None] | None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._head = head
        self._on_problem = on_problem
        self._part_count = 0
        self._chunk: Sequence[Doomed] = ()

    def announce(self, chunk: Sequence[Doomed]) -> None:
        """Write down what is about to be deleted (J10). If this raises, nothing of the chunk may be deleted.

        Raises:
            Unavailable: The store did not answer.
            CommitOutcomeUnknown: The same.
        """
        self._part_count += 1
        self._chunk = chunk
        try:
            self._write({})
        except IceDBError as error:
            self._tell("announce", error)
            raise

    def conclude(self, failed: Sequence[FailedDelete]) -> None:
        """Write down what became of the chunk announced last. Never raises: the announcement says it already."""
        # WARN: by an unconditional PUT: an announcement that was sent twice and lands once more, late, takes the
        # outcomes back to "announced". That says less, and nothing wrong.
        try:
            self._write({each.key: each.reason for each in failed}, is_concluded=True)
        except IceDBError as error:
            self._tell("conclude", error)
        self._chunk = ()

    def _tell(self, step: AuditStep, error: IceDBError) -> None:
        if self._on_problem is not None:
            self._on_problem(step, error)

    def _write(self, reasons: Mapping[str, str], *, is_concluded: bool = False) -> None:
        part = self._part_count - 1
        key = self._paths.audit_key(time_ms=self._head["store_now_ms"], run_id=self._head["run"], part=part)
        lines = [orjson.dumps({**self._head, "part": part})]
        for each in self._chunk:
            reason = reasons.get(each.key)
            outcome: Outcome = "announced" if not is_concluded else "deleted" if reason is None else "failed"
            lines.append(orjson.dumps(_entry(each, outcome, reason)))
        self._store.put(key, b"\n".join(lines) + b"\n")


def _entry(doomed: Doomed, outcome: Outcome, reason: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "key": doomed.key,
        "kind": doomed.kind,
        "why": doomed.why,
        "died_ms": doomed.died_ms,
        "size_bytes": doomed.size_bytes,
        "passed": doomed.passed,
        "outcome": outcome,
    }
    if reason is not None:
        entry["reason"] = reason[:MAX_REASON_CHARS]
    return entry


def sweep_audit(
    store: ObjectStore,
    paths: TablePaths,
    *,
    retention_ms: int,
    clock: Clock,
    check_alive: Callable[[], None] | None = None,
    chunk_keys: int = CHUNK_KEYS,
) -> Deleted:
    """Delete what the audit has kept for longer than its retention, by the store's clock. Idempotent. Nothing else.

    Only the janitor calls it (J6); it is not written down. Costs one listing of the old ones and of one page more: keys
    sort by time.

    Raises:
        UnsupportedFormat: No age can be told by this store (J1); nothing was deleted.
        Unavailable: The store's clock jumped, and nothing was deleted; or the store did not answer.
    """
    deleter = Deleter(store, check_alive=check_alive, chunk_keys=chunk_keys)
    keys: set[str] = set()
    failed: list[FailedDelete] = []
    token: str | None = None
    while True:
        page = store.list_page(paths.audit_prefix, token=token)
        found = [info for info in page.objects if parse_audit_key(info.key) is not None]
        old = [info for info in found if info.modified_ms + retention_ms <= page.store_now_ms]
        if old and not keys:
            check_store_clock(store, paths.clock_key, clock=clock)
        done = deleter.delete(_doom(info) for info in old)
        keys |= done.keys
        failed += done.failed
        token = page.next_token
        if token is None or len(old) < len(found):
            return Deleted(frozenset(keys), tuple(failed))


def _doom(info: ObjectInfo) -> Doomed:
    return Doomed(
        info.key, "audit", "older than the audit's retention", ("audit_retention",), size_bytes=info.size_bytes
    )

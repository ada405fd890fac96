"""The small values of the simulation's oracle: what it remembers of batches, reads, leases and commits."""

from dataclasses import dataclass

from icedb_log.clean.leases import Lease


@dataclass(slots=True)
class SimBatch:
    """One batch of a producer.

    Attributes:
        batch_id: Its id.
        body: As it is staged.
        rows: Its rows, in any partition, without the bad ones.
        bad_count: Its bad rows.
        is_acknowledged: Whether a producer was told that it is accepted.
        is_quarantined: Whether it lies in quarantine, whole, or did until an operator took it away.
        has_reason: Whether the reason of that is there.
        bad_rows_key: Where its bad rows lie, by the last reason that says so.
        retry_id: Id under which an operator stages it again.
    """

    batch_id: str
    body: bytes
    rows: frozenset[int]
    bad_count: int = 0
    is_acknowledged: bool = False
    is_quarantined: bool = False
    has_reason: bool = False
    bad_rows_key: str = ""
    retry_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Where the world stood when a read began: what it must see at least."""

    commit_count: int
    committed: frozenset[str]
    types: dict[str, str]


@dataclass(slots=True)
class HeldLease:
    """A lease that its holder relies on: it was written, and then the pinned time could be read."""

    lease: Lease
    live: frozenset[str]


@dataclass(frozen=True, slots=True)
class Promise:
    """Until when the files of a read must exist."""

    until_ms: int
    live: frozenset[str]


@dataclass(slots=True)
class Landed:
    """A commit that landed."""

    time_ms: int
    batch_ids: tuple[str, ...]


@dataclass(slots=True)
class Counters:
    """What a schedule did, so that one can see that it did something."""

    commits: int = 0
    merges: int = 0
    removals: int = 0
    widenings: int = 0
    seals: int = 0
    strips: int = 0
    deleted_logs: int = 0
    deleted_data: int = 0
    deleted_orphans: int = 0
    reads: int = 0
    past_reads: int = 0
    refused_past_reads: int = 0
    leases: int = 0
    quarantined: int = 0
    quarantined_rows: int = 0
    retries: int = 0
    crashes: int = 0

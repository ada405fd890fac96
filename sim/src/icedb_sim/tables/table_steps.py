"""Steps of tests on a small table: flushes, fences, vacuums, tags, drops, rebuilds."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from icedb_log.clean.vacuum import VacuumResult
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import FenceState, HeldFence, acquire_fence, read_fence
from icedb_log.commit.table import Table
from icedb_log.holds.stored_holds import HoldStatus, StoredHold
from icedb_log.holds.tags import create_tag, find_tag, read_tagged
from icedb_log.ingest.idempotency import bind_key
from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import BadRows, FlushJob, FlushOutput, StagedBatch
from icedb_log.keys import Role
from icedb_log.log.codec import decode_log_file
from icedb_log.model import LogFile
from icedb_log.repair.rebuild import RebuildResult
from icedb_log.repair.rebuild_plan import Candidate
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, load_any_config
from icedb_log.table.table_config import Dropped, TableConfig
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.trash.purge import PurgeLimits, PurgeResult, purge_table

from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.log_views import live
from icedb_sim.tables.row_files import RowFileWriter, read_live_rows
from icedb_sim.tables.small_table import DEFAULTS, SmallTable


class TamperingWriter(RowFileWriter):
    """A data path with a bug.

    Args:
        table: The table that it writes for.
        tamper: Changes what was made.
    """

    def __init__(self, table: SmallTable, tamper: Callable[[FlushOutput], FlushOutput]) -> None:
        super().__init__(table.store, table.clock)
        object.__setattr__(self, "tamper", tamper)

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Make the files, and tamper with what is said of them."""
        tampered: FlushOutput = self.tamper(super().write_batches(job))  # type: ignore[attr-defined]
        return tampered


def staged_ids(table: SmallTable) -> list[str]:
    """Return the ids of the batches that are staged."""
    return [batch.batch_id for batch in list_staged(table).batches]


def bad_rows_of(batch: StagedBatch, key: str = "wh/t/_icedb/quarantine/x.rows.ndjson.zst") -> BadRows:
    """Return what a writer says of one row that it left out."""
    return BadRows(batch, key, 1, "why")


FENCE: Final = "/_icedb/fence/"
LOG: Final = "/_log/"


def acquire(table: SmallTable, role: Role = "ingest", owner: str = "me") -> HeldFence:
    """Acquire a fence."""
    return acquire_fence(table.known(owner), role)


def make_log(table: SmallTable, name: str = "x") -> LogFile:
    """Return a log file that makes one data file live."""
    return LogFile(table.clock.now_ms(), {}, (live(name),), commit_id=table.clock.new_id())


def state_of(table: SmallTable, role: Role = "ingest") -> FenceState | None:
    """Return what stands in a fence, past all scripted faults."""
    return read_fence(table.store.inner, table.paths.fence_key(role))[0]


def log_files(table: SmallTable) -> dict[str, LogFile]:
    """Return the log files by key."""
    return {key: decode_log_file(key, body) for key, body in table.log_objects()}


def make_dead_table() -> SmallTable:
    """Return a table of two appends, merged, both grace periods over."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    table.merge()
    table.clock.advance(table.config.data_grace_ms)
    return table


def rival_of(table: SmallTable) -> SmallTable:
    """Return somebody else who works on the same table, whose requests never fail."""
    rival = SmallTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    return rival


def assert_clean(table: SmallTable) -> None:
    """Assert that only what is live is there."""
    assert table.keys(table.paths.data_prefix) == [marker.path for marker in table.snapshot().live]
    snapshot = table.snapshot()
    assert (snapshot.tombstoned_ms, snapshot.log_tombstoned_ms) == ({}, {})


DAY_MS: Final = 24 * 60 * 60 * 1000
NAME: Final = "q3"


def make_table() -> SmallTable:
    """Return a table with the rows 1 and 2, in a data file each."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    return table


def tag(table: SmallTable, name: str = NAME, **options: Any) -> StoredHold:
    """Tag a table; options as of :func:`~icedb_log.holds.tags.create_tag`."""
    return create_tag(Table.open(table, clock=table.clock, reader=table.reader()), name, **options)


def tagged_ids(table: SmallTable, name: str = NAME) -> list[int]:
    """Return the ids of the rows that a tag shows."""
    _, snapshot = read_tagged(table, name)
    return sorted(row["id"] for row in read_live_rows(table.store, snapshot))


def status(table: SmallTable, name: str = NAME) -> HoldStatus:
    """Return what is known of a tag."""
    return find_tag(table, name)[1]


def age(table: SmallTable, by_ms: int = DAY_MS) -> VacuumResult:
    """Let everything that nothing holds be deleted."""
    table.clock.advance(by_ms)
    table.vacuum()
    table.clock.advance(table.config.log_grace_ms)
    return table.vacuum()


def data_count(table: SmallTable) -> int:
    """Return how many data objects there are."""
    return len(table.keys(table.paths.data_prefix))


KEEP_MS: Final = 600_000
SEAL_MS: Final[int] = DEFAULTS["seal_age_ms"]
KEPT: Final = ["table.json"]
"""What a purge leaves, below ``_icedb/``."""


def make_full() -> SmallTable:
    """Return a table with something of every kind, and a neighbour whose name begins as its does."""
    table = SmallTable()
    for number in range(4):
        table.append(number, p="ab"[number % 2])
    table.merge()
    table.append(4)
    table.stage([{"id": 5, "p": "a"}])
    store, paths = table.store, table.paths
    bind_key(TableStore(store, paths), key="order 1", batch_id=new_batch_id(table.clock), content_sha256="00")
    put_lease(TableStore(store, paths), at_ms=0, ttl_ms=1, clock=table.clock, lease_id="old")
    for key in (
        paths.pressure_key,
        paths.quarantine_key("0198.json"),
        paths.import_key("i1"),
        paths.refused_key("r1"),
        f"{paths.data_prefix}p=a/by-hand.parquet",
        f"{paths.data_prefix}notes.txt",
        f"{paths.prefix}/_icedb/unknown/kind",
        f"{paths.prefix}/elsewhere.txt",
    ):
        store.put(key, b"x")
    store.put("wh/t2/_icedb/table.json", b"a neighbour")
    table.clock.advance(10)
    return table


def drop(table: SmallTable, *, force: bool = False) -> None:
    """Drop it, for ten minutes or for good."""
    request = DropRequest(keep_ms=KEEP_MS, is_forced=force)
    drop_table(table, clock=table.clock, request=request)
    table.clock.advance(1)


def purge(table: SmallTable, **options: Any) -> PurgeResult:
    """Purge it once, in small chunks."""
    options = {"limits": PurgeLimits(chunk_keys=3, page_keys=2), **options}
    result = purge_table(table, clock=table.clock, owner="janitor", **options)
    table.clock.advance(1)
    return result


def create_again(table: SmallTable, **fields: Any) -> None:
    """Create another one of its name, and go on with that one."""
    table.config = TableConfig.create(name=table.name, **{**DEFAULTS, **fields})
    table.paths = create_table(table, table.config).paths
    table.clock.advance(1)


def mark_of(table: SmallTable) -> Dropped | None:
    """Return the mark in its ``table.json``."""
    return load_any_config(table)[0].dropped


def rest_of(table: SmallTable) -> list[str]:
    """List what lies below its prefix; below ``_icedb/`` without that."""
    own = f"{table.paths.prefix}/"
    return [key.removeprefix(f"{own}_icedb/") for key in table.keys(own)]


_Kind = TypeVar("_Kind", bound=SmallTable)


def make_merged_table(kind: type[_Kind], **config: Any) -> _Kind:
    """Return a table with two partitions, merged, and one more flush: rows 1 to 7."""
    table = kind(has_footers=True, **config)
    table.append(1, 2, p="a")
    table.append(3, 4, p="a")
    table.append(5, 6, p="b")
    table.merge(full=True)
    table.append(7, p="a")
    return table


def lose_log(table: SmallTable) -> None:
    """Delete every log file."""
    table.store.delete(table.keys(table.paths.log_prefix))


def damage(table: SmallTable, number: int, body: bytes = b"{") -> str:
    """Write something else over a log file, and return its key."""
    key = table.keys(table.paths.log_prefix)[number]
    table.store.put(key, body)
    return key


def candidates(result: RebuildResult) -> dict[str, Candidate]:
    """Return the data files that nothing named, by key."""
    return {each.key: each for each in result.plan.candidates}

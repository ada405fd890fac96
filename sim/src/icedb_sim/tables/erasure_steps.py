"""An erasure on a :class:`~icedb_sim.tables.small_table.SmallTable`: asked for, carried on, and looked behind."""

from dataclasses import replace

from icedb_log.clean.leftovers import sweep_leftovers
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import ErasureProgress, advance_erasure
from icedb_log.holds.erasures import Erasure, create_erasure
from icedb_log.jobs import FlushJob, FlushOutput, MergedGroup, MergeJob, RowChanger
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.object_store import ObjectStore, list_all

from icedb_sim.tables.row_files import RowFileChanger, RowFileWriter, read_live_rows, read_rows, write_rows
from icedb_sim.tables.small_table import SmallTable


def with_stats(store: ObjectStore, marker: FileMarker, column: str) -> FileMarker:
    """Return a marker with the statistics of a text column, as the real data path writes them."""
    values = sorted(str(row[column]) for row in read_rows(store, marker.path) if row.get(column) is not None)
    return replace(marker, stats={column: (values[0], values[-1], 0)}) if values else marker


class StatsWriter(RowFileWriter):
    """Writes statistics of column ``u`` into markers."""

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Run a flush job."""
        output = super().write_batches(job)
        return replace(output, files=tuple(with_stats(self.store, marker, "u") for marker in output.files))


class StatsChanger(RowFileChanger):
    """Writes statistics of column ``u`` into markers."""

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Run a merge job."""
        return tuple(
            replace(group, outputs=tuple(with_stats(self.store, marker, "u") for marker in group.outputs))
            for group in super().merge_groups(job)
        )


def append_users(table: SmallTable, *users: str, p: str = "a") -> None:
    """Flush one batch with a row for each user."""
    table.stage([{"id": number, "p": p, "u": user} for number, user in enumerate(users)])
    table.flush(writer=StatsWriter(table.store, table.clock))


def live_users(table: SmallTable) -> list[str]:
    """Return the users of all live rows, ascending."""
    return sorted(row["u"] for row in read_live_rows(table.store, table.snapshot()))


def put_orphan(table: SmallTable, *users: str, p: str = "a") -> FileMarker:
    """Upload a data file with a row for each user, that no log file names."""
    return write_rows(
        table,
        partition=f"p={p}",
        rows=[{"id": 1, "p": p, "u": user} for user in users],
        config=table.config,
        clock=table.clock,
        time_ms=table.clock.now_ms(),
    )


def commit_marker(table: SmallTable, marker: FileMarker) -> None:
    """Commit a data file that is there, as a flush does."""
    commit_id, now_ms = table.clock.new_id(), table.clock.now_ms()
    schema = {"id": "BIGINT", "p": "VARCHAR", "u": "VARCHAR"}
    log = LogFile(now_ms, schema, (marker,), commit_id=commit_id)
    key = table.paths.log_key(time_ms=now_ms, commit_id=commit_id, is_merged=False)
    table.store.put_if_absent(key, encode_log_file(log))


def ask(table: SmallTable, condition: str = "u = 'victim'") -> str:
    """Ask for an erasure and return its id."""
    erasure = create_erasure(table, condition=condition, clock=table.clock)
    table.clock.advance(1)
    return erasure.erasure_id


def advance(
    table: SmallTable,
    erasure_id: str,
    *,
    changer: RowChanger | None = None,
) -> ErasureProgress:
    """Carry an erasure on."""
    progress = advance_erasure(
        Table.open(table, clock=table.clock, owner="erase", reader=table.reader()),
        changer or StatsChanger(table.store, table.clock),
        erasure_id,
    )
    table.clock.advance(1)
    return progress


def clean(table: SmallTable) -> None:
    """Vacuum and sweep as the janitor does."""
    table.vacuum()
    sweep_leftovers(table.opened(), table.sweep().walk)


def finish(table: SmallTable, erasure_id: str, *, max_rounds: int = 30) -> Erasure:
    """Let janitor and worker take turns, and time pass, until an erasure has ended. Fails if it does not."""
    for _ in range(max_rounds):
        progress = advance(table, erasure_id)
        if progress.erasure.has_ended:
            return progress.erasure
        if progress.waits_for == "flush":
            table.flush(writer=StatsWriter(table.store, table.clock))
        table.clock.advance(22_000)
        clean(table)
    raise AssertionError(f"erasure {erasure_id} does not end: {progress}")


def find_traces(table: SmallTable, text: bytes) -> list[str]:
    """Return the keys of all data and log objects in which a text stands."""
    prefixes = (table.paths.data_prefix, table.paths.log_prefix)
    keys = [info.key for prefix in prefixes for info in list_all(table.store, prefix).objects]
    return [key for key in keys if text in table.store.get(key).body]


def make_users_table() -> SmallTable:
    """Return a table of three commits, two of which have rows to be erased."""
    table = SmallTable()
    append_users(table, "ann", "victim")
    append_users(table, "bob", "victim", "victim", p="b")
    append_users(table, "cid")
    return table

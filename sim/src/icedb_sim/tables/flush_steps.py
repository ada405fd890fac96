"""What tests of flushes have in common: a data path with a bug, and what is staged."""

from collections.abc import Callable

from icedb_log.ingest.staging import list_staged
from icedb_log.jobs import BadRows, FlushJob, FlushOutput, StagedBatch

from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.small_table import SmallTable


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
    return [batch.batch_id for batch in list_staged(table.store, table.paths).batches]


def bad_rows_of(batch: StagedBatch, key: str = "wh/t/_icedb/quarantine/x.rows.ndjson.zst") -> BadRows:
    """Return what a writer says of one row that it left out."""
    return BadRows(batch, key, 1, "why")

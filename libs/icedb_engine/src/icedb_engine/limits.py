"""The bounds of the data path: what one unit of work may take, and what a batch may hold."""

from dataclasses import dataclass, field, replace
from typing import Final, Self

from icedb_log.table.column_names import MAX_TABLE_COLUMNS
from icedb_log.units import GIB, MIB

PROCESS_BYTES: Final = 256 * MIB
"""What a task's process takes besides: Python, Arrow and the native engine before they read anything, and what freed
memory is not given back."""

SQL_SHARE: Final = 3
MIN_SQL_BYTES: Final = 64 * MIB
"""A query gets so large a part of a task's memory, and so much at least."""

TRANSFER_COUNT: Final = 4
"""Objects that one unit moves at once."""

MAX_PARTITION_VALUE_BYTES: Final = 190
"""Encoded. With a field's name (at most 64) and ``=`` it is one path component of at most 255 bytes."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one unit of work may take of the machine that runs it.

    Attributes:
        memory_bytes: Memory of the native engine; above it, it spills to the scratch folder.
        thread_count: Threads of the native engine if the job has only one unit; shared out otherwise.
        scratch_bytes: Local disk for inputs, outputs and spill, each.
        scratch_folder: Parent of the scratch folders; None: the system's folder for temporary files.
        query_ms: How long SQL of a user may take over one set of rows.
    """

    memory_bytes: int = 1 * GIB
    thread_count: int = 2
    scratch_bytes: int = 32 * GIB
    scratch_folder: str | None = None
    query_ms: int = 3 * 60_000

    def part(self, count: int) -> Self:
        """Return so large a part of the memory, and the rest as it is."""
        return replace(self, memory_bytes=self.memory_bytes // count)

    def shared_by(self, unit_count: int) -> Self:
        """Return the bounds of one of several units that run at once."""
        return replace(self, thread_count=max(1, self.thread_count // unit_count))

    def for_sql(self) -> Self:
        """Return the bounds of SQL of users in a unit: it shares the memory with what reads and writes the rows."""
        return replace(self, memory_bytes=max(self.memory_bytes // SQL_SHARE, MIN_SQL_BYTES))

    def beside(self, held_bytes: int) -> Self:
        """Return what is left for the native engine of a unit that holds batches, decoded, of so many bytes.

        Besides their text there are the columns that are made of it, about as large; and the process itself.
        """
        left_bytes = self.memory_bytes - PROCESS_BYTES - 2 * held_bytes
        return replace(self, memory_bytes=max(self.memory_bytes // 4, left_bytes))


@dataclass(frozen=True, slots=True)
class FlushUnitLimits:
    """What a batch may hold, and how batches share units. A batch above a bound is rejected, not cut.

    Attributes:
        batch_staged_bytes: Size of a staged object.
        batch_decoded_bytes: Size after decompression: the guard against compression bombs.
        batch_rows: Rows, or lines of text: very short ones take more memory than they have bytes.
        document_bytes: Size of a batch that is one JSON document: it takes about nine times as much to take apart.
        line_bytes: Size of one event.
        batch_columns: Distinct top-level keys of one batch.
        table_columns: Columns of the table with those of the batch.
        unit_cells: Rows times columns: a batch above it is rejected, a unit takes no further batch above it; few keys
            each in very many rows, and many keys together, are small as text and large as columns.
        unit_decoded_bytes: A unit takes no further batch above this; the rest goes to a later round.
        unit_target_bytes: Estimated decoded size that one unit of work aims at.
        compression_ratio: Estimated ratio of decoded to staged size of compressed batches.
    """

    batch_staged_bytes: int = 256 * MIB
    batch_decoded_bytes: int = 512 * MIB
    batch_rows: int = 10_000_000
    document_bytes: int = 64 * MIB
    line_bytes: int = 8 * MIB
    batch_columns: int = 1000
    table_columns: int = MAX_TABLE_COLUMNS
    unit_cells: int = 256 * MIB
    unit_decoded_bytes: int = 512 * MIB
    unit_target_bytes: int = 64 * MIB
    compression_ratio: int = 8


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The bounds of a job and its units.

    Attributes:
        batch: What a batch may hold, and how batches share units.
        engine: What one unit may take of the machine that runs it.
        direct_bytes: Estimated decoded size up to which a flush is one unit, which writes its files itself; a larger
            one is read and written by several tasks.
        write_task_bytes: Compressed size of read rows that is worth a task of its own.
    """

    batch: FlushUnitLimits = field(default_factory=FlushUnitLimits)
    engine: EngineLimits = field(default_factory=EngineLimits)
    direct_bytes: int = 512 * MIB
    write_task_bytes: int = 64 * MIB

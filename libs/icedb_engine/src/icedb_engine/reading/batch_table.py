"""A batch that came as columns: the cells of a CSV file, or the typed columns of Parquet and Arrow."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from icedb_engine.reading.bad_lines import BadLines
from icedb_engine.reading.column_forms import Form
from icedb_engine.reading.row_problems import Fault


@dataclass(frozen=True, slots=True)
class BatchTable:
    """The rows of one batch.

    Attributes:
        table: Its columns, of the Arrow types that the forms have in the engine.
        forms: The form of each column, by name; the order is that of the batch.
        numbers: Number of each row in the batch, from 1 (the line, for a format that has lines).
        decoded_bytes: Size in memory.
        bad: Rows that were set aside.
        noun: What a producer calls a row.
    """

    table: pa.Table
    forms: Mapping[str, Form]
    numbers: pa.Int32Array
    decoded_bytes: int
    bad: BadLines = field(default_factory=BadLines)
    noun: str = "row"

    @property
    def row_count(self) -> int:
        """Rows to be looked at."""
        return int(self.table.num_rows)

    def split(self, bad_numbers: Mapping[int, Fault]) -> "BatchTable":
        """Return the same batch with some more rows among the bad ones, as JSON objects.

        Args:
            bad_numbers: Number of each such row, with what is wrong with it.
        """
        is_bad = pc.is_in(self.numbers, pa.array(list(bad_numbers), pa.int32()))
        numbers = self.numbers.filter(is_bad).to_pylist()
        rows = self.table.filter(is_bad).to_pylist()
        bad = self.bad.add(
            {number: (orjson.dumps(row), bad_numbers[number]) for number, row in zip(numbers, rows, strict=True)}
        )
        kept = pc.invert(is_bad)
        return replace(self, table=self.table.filter(kept), numbers=self.numbers.filter(kept), bad=bad)

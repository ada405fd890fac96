"""The rows of a batch that cannot be committed (``on_bad_rows = quarantine_rows``), as the NDJSON that is kept of them.

A row is kept as it came, byte for byte where it came as a line, so that its producer can mend and send it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import pyarrow as pa
from icedb_log.jobs import RowFault

from icedb_engine.reading.row_problems import Fault, describe_faults

MAX_FAULT_ROWS: Final = 10_000
"""Bad rows of a batch of which it is written down what is wrong with each; the others are counted."""


@dataclass(frozen=True, slots=True)
class BadLines:
    """Some bad rows of one batch.

    Attributes:
        rows: Text of each as bytes without line ending, and what is wrong with it, by its number in the batch.
    """

    rows: Mapping[int, tuple[bytes, Fault]] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def faults(self) -> dict[int, Fault]:
        """What is wrong with each, in the order in which they are kept."""
        return {number: self.rows[number][1] for number in sorted(self.rows)}

    @property
    def reason(self) -> str:
        """What is wrong with them: the first ones each in its own words, the others counted."""
        return describe_faults(self.faults)

    def group_faults(self) -> tuple[RowFault, ...]:
        """Return what is wrong with each of the first :data:`MAX_FAULT_ROWS`, rows of one fault together."""
        groups: dict[str, list[int]] = {}
        for number, fault in islice(self.faults.items(), MAX_FAULT_ROWS):
            groups.setdefault(fault.what, []).append(number)
        return tuple(RowFault(what, tuple(numbers)) for what, numbers in groups.items())

    def add(self, rows: Mapping[int, tuple[bytes, Fault]]) -> "BadLines":
        """Return these and some more."""
        return BadLines({**self.rows, **rows}) if rows else self

    def compress(self) -> bytes:
        """Return the rows as NDJSON, in order, compressed with zstd."""
        text = b"".join(self.rows[number][0] + b"\n" for number in sorted(self.rows))
        compressed: bytes = pa.compress(text, codec="zstd", asbytes=True)
        return compressed

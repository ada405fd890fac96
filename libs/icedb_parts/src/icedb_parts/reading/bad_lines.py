"""The rows of a batch that cannot be committed (``on_bad_rows = quarantine_rows``), as the NDJSON that is kept of them.

A row is kept as it came, byte for byte where it came as a line, so that its producer can mend and send it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BadLines:
    """Some bad rows of one batch.

    Attributes:
        rows: Text of each as bytes without line ending, and what is wrong with it, by its number in the batch.
    """

    rows: Mapping[int, tuple[bytes, str]] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """How many."""
        return len(self.rows)

    @property
    def reason(self) -> str:
        """What is wrong with the first of them."""
        return self.rows[min(self.rows)][1]

    def add(self, rows: Mapping[int, tuple[bytes, str]]) -> "BadLines":
        """Return these and some more."""
        return BadLines({**self.rows, **rows}) if rows else self

    def compress(self) -> bytes:
        """Return the rows as NDJSON, in order, compressed with zstd."""
        text = b"".join(self.rows[number][0] + b"\n" for number in sorted(self.rows))
        compressed: bytes = pa.compress(text, codec="zstd", asbytes=True)
        return compressed

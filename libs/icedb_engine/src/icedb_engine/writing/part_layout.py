"""How data files are laid out, whoever writes them, and the count of their rows."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvariantViolated
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker

from icedb_engine.units.flush_types import FlushUnit, WriteUnit
from icedb_engine.writing.footer import make_footer

SPLIT_FACTOR: Final = 2
"""A data file ends when it has this many times the target size."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """How data files are written.

    Attributes:
        paths: Keys of the table.
        partitions: Encoded partition path of each ordinal.
        footer: Gives the footer's key-value metadata for an ordinal.
        sort_columns: Sorted by these, nulls last; columns of the stream.
        stats_columns: Columns of the stream whose statistics go into the markers.
        row_group_rows: Rows of a row group.
        split_bytes: A file above this size ends with its row group, and the next run begins.
        created_ms: Goes into the markers.
    """

    paths: TablePaths
    partitions: Sequence[str]
    footer: Callable[[int], dict[str, str]]
    sort_columns: Sequence[str]
    stats_columns: Sequence[str]
    row_group_rows: int
    split_bytes: int
    created_ms: int


def make_flush_layout(
    unit: FlushUnit | WriteUnit, *, columns: Collection[str], partitions: Sequence[str]
) -> PartLayout:
    """Return how a unit's data files look.

    Args:
        unit: The unit that writes them.
        columns: Their columns.
        partitions: Encoded path of each ordinal.
    """
    config = unit.config
    sort = [column for column in config.sort if column in columns]
    sources = [field.column for field in config.partition if field.column in columns]

    def footer(ordinal: int) -> dict[str, str]:
        return make_footer(table=unit.paths.name, partition=partitions[ordinal], commit_id=unit.commit_id, kind="flush")

    return PartLayout(
        paths=unit.paths,
        partitions=partitions,
        footer=footer,
        sort_columns=sort,
        stats_columns=tuple(dict.fromkeys([*sources, *sort])),
        row_group_rows=config.row_group_rows,
        split_bytes=SPLIT_FACTOR * config.target_file_bytes,
        created_ms=unit.time_ms,
    )


def require_parity(paths: TablePaths, *, read_count: int, files: Sequence[FileMarker]) -> None:
    """Raise InvariantViolated unless the files have as many rows as were read."""
    written_count = sum(marker.row_count or 0 for marker in files)
    if written_count != read_count:
        raise InvariantViolated(f"table {paths.name}: a flush read {read_count} rows and wrote {written_count}")

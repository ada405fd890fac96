"""What the footer of a data file says, what a check of its pages says, as values, and who reads them.

Owns the meaning of the ``icedb.*`` key-value metadata that the data path writes into each footer, and the protocols
:class:`FooterReader` and :class:`PageReader`. Real footers are read by ``icedb_client.footers``, those of tests by
:mod:`icedb_sim.tables.row_footers`. A footer is the word of a file about itself: whether the file is live is said
by the log alone (S1).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

from icedb_log.model import EMPTY, ColumnStats
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.column_bounds import Scalar, cut_bounds

FooterKind = Literal["flush", "merge", "delete", "rewrite", "foreign"]
"""Which job wrote a data file; ``foreign``: none of ours, the file was imported."""

UnreadableCause = Literal["gone", "changed", "damaged", "unanswered"]
"""Why there is no footer: no such object; another one than was listed; no whole Parquet file, or one that contradicts
itself; the store did not answer (which says nothing of the file: ask again)."""

OWN_KINDS: Final = tuple(kind for kind in get_args(FooterKind) if kind != "foreign")


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a footer says of the values of one column, over all row groups.

    Attributes:
        low: Not above any value; a JSON scalar in the form that markers have (times as ISO text); ``None`` if unknown.
        high: Not below any value; ``None`` if unknown.
        null_count: Number of nulls; ``None`` if unknown.
        is_exact: Whether ``low`` and ``high`` are values of the column, not cut ones.
    """

    low: Scalar
    high: Scalar
    null_count: int | None
    is_exact: bool

    def to_stats(self) -> ColumnStats | None:
        """Return it as a marker has it, long text cut so that the bounds stay bounds; ``None`` if it cannot say so."""
        if self.null_count is None:
            return None
        if isinstance(self.low, float):  # footers say nothing of NaN, which engines sort above everything
            return None, None, self.null_count
        return (*cut_bounds(self.low, self.high), self.null_count)


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Who wrote a data file, and from what: its ``icedb.*`` metadata.

    Attributes:
        kind: Which job; ``foreign`` for files without this metadata, and for such that a later release may understand.
        table: Name of the table that it was written for; a copy that was imported keeps the name of the first one.
        partition: Encoded partition path; empty without partitions.
        commit_id: Id of the commit that was to make it live.
        inputs: Full keys of the data files whose rows it has; a flush has none.
    """

    kind: FooterKind
    table: str = ""
    partition: str = ""
    commit_id: str = ""
    inputs: tuple[str, ...] = ()


FOREIGN: Final = FileOrigin("foreign")


@dataclass(frozen=True, slots=True)
class Footer:
    """What the footer of one data file says.

    Attributes:
        info: The file, as it was listed.
        row_count: Rows of it.
        columns: Column to SQL type in the log's spelling; without columns that have no such type.
        odd_columns: Columns of which no column of a table is without a conversion, with the type in words.
        origin: Who wrote it.
        bounds: Of the columns that were asked for, as far as the file has them and says something.
    """

    info: ObjectInfo
    row_count: int
    columns: Mapping[str, str]
    odd_columns: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    origin: FileOrigin = FOREIGN
    bounds: Mapping[str, ColumnBounds] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class UnreadableFooter:
    """A file whose footer cannot be had.

    Attributes:
        info: The file, as it was listed.
        cause: See :data:`UnreadableCause`.
        reason: The same in words, with what to do.
    """

    info: ObjectInfo
    cause: UnreadableCause
    reason: str


class FooterReader(Protocol):
    """Reads the footers of data files."""

    def read_footers(
        self, infos: Iterable[ObjectInfo], *, bounds_of: Iterable[str] = ()
    ) -> Iterator[Footer | UnreadableFooter]:
        """Read the footers of any number of files, several at once, and return one result each, in the same order.

        Reads ahead by a bounded number of files, never a whole file. Nothing that a file holds makes it raise:
        what cannot be read is an :class:`UnreadableFooter`.

        Args:
            infos: Files as a listing names them; an empty ETag stands for any.
            bounds_of: Columns whose minimum, maximum and nulls are wanted.
        """
        ...


@dataclass(frozen=True, slots=True)
class PageLook:
    """What the pages of one data file are like.

    Attributes:
        info: The file.
        page_count: Pages that were read.
        unsummed_count: Those of them that have no checksum: not every change in them can be seen.
        cause: Why the file is not as it was written, or could not be read; ``None``: nothing is wrong with it.
        reason: The same in words.
    """

    info: ObjectInfo
    page_count: int = 0
    unsummed_count: int = 0
    cause: UnreadableCause | None = None
    reason: str = ""


class PageReader(Protocol):
    """Reads the pages of data files."""

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        """Read all bytes of any number of files, and return one result each, in the same order.

        Nothing that a file holds makes it raise.
        """
        ...


def read_origin(texts: Mapping[str, str]) -> FileOrigin:
    """Return what the key-value metadata of a footer says of a file's origin.

    Metadata that is only partly there, or not understood, is none of ours: ``foreign``.
    """
    kind = next((known for known in OWN_KINDS if known == texts.get("icedb.kind")), None)
    if texts.get("icedb.format") != "1" or kind is None:
        return FOREIGN
    try:
        inputs = json.loads(texts.get("icedb.inputs", "[]"))
    except (ValueError, RecursionError):
        return FOREIGN
    if not isinstance(inputs, list) or not all(isinstance(key, str) for key in inputs):
        return FOREIGN
    return FileOrigin(
        kind=kind,
        table=texts.get("icedb.table", ""),
        partition=texts.get("icedb.partition", ""),
        commit_id=texts.get("icedb.commit", ""),
        inputs=tuple(inputs),
    )

"""What a check of pages says of a data file; the reading itself is a client's (:class:`PageReader`)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from icedb_log.repair.footers import UnreadableCause
from icedb_log.store.object_store import ObjectInfo


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

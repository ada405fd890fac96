"""The values of publishing, and what a writer of publications has to be.

What a publication says in an engine's own words (table metadata, manifests) is the business of a
:class:`PublicationWriter`; nothing here knows any of it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, Protocol

from icedb_log.commit.table import Table
from icedb_log.holds.stored_holds import StoredHold
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import FileMarker
from icedb_log.store.table_store import TableStore

Operation = Literal["append", "replace", "overwrite", "delete"]
"""What a step did to rows: added some; none, only files changed; both; removed some."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One publication that became the current one.

    Attributes:
        publication_id: 32 lower-case hex digits, never used again.
        chain: Id of its chain, as of an id: one begins when there is no head (P1).
        sequence: Number of the state of the head that it made; ascending along the chain, with gaps.
        metadata_key: Key of the object that engines begin with.
        since_ms: None of its states needs a data file that was dead by then (J4).
        as_of_ms: The store's clock before its log was listed: what had landed by then is part of it.
        objects: Keys of all objects that it refers to, its own and those of earlier ones.
        log_names: Names of the log files that were there (:func:`~icedb_log.keys.log_name`).
        tags_digest: Tells the tags that were there from others.
        tags_end_ms: When the first of them ends by itself, by the store's clock; ``None``: none does.
        modified_ms: LastModified of the head that names it.
    """

    publication_id: str
    chain: str
    sequence: int
    metadata_key: str
    since_ms: int
    as_of_ms: int
    objects: tuple[str, ...] = ()
    log_names: frozenset[str] = frozenset()
    tags_digest: str = ""
    tags_end_ms: int | None = None
    modified_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """What leads from one state of a table to the next.

    Attributes:
        operation: What it did to rows.
        time_ms: Of the commit, by the committer's clock: not ascending.
        log_name: Of the log file that says so; empty: several, or none that is still there.
        added: Data files that it made live, with row counts and statistics as the log has them.
        removed: Paths of those that were live before it.
        since_ms: The state after it needs no data file that was dead by then.
        has_own_files: Whether the log proves of all that it added that an append of this table has written it: without
            field ids, and in the types that the table had then (``chg``, N6).
    """

    operation: Operation
    time_ms: int
    log_name: str
    added: Sequence[FileMarker]
    removed: Sequence[str]
    since_ms: int
    has_own_files: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A publication to be written.

    Attributes:
        table: The table.
        chain: Id of the chain.
        publication_id: Its id.
        sequence: Of the state of the head that it is to make.
        base: What it goes on from; ``None``: from nothing, and no earlier object may be referred to.
        base_since_ms: What the base's current state needs, as this log tells: for that state, in place of what its step
            said. 0 without a base.
        steps: From the base's current state, or from no data files at all, to ``live``. At most ``MAX_STEPS``.
        live: All data files that are live after the last step.
        schema: Columns and types, widened columns with the wider type.
        logged_schema: The same with the types of the schema lines, which never change.
        since_ms: A state of the base that may need a data file which was dead by then must leave the history, and all
            before it.
        as_of_ms: As of :class:`Publication`.
        tags: Active tags, by name.
        log_names: As of :class:`Publication`.
        put: Writes an object, given a name of its own and its bytes, and returns its key.
    """

    table: Table
    chain: str
    publication_id: str
    sequence: int
    base: Publication | None
    base_since_ms: int
    steps: tuple[Step, ...]
    live: LiveFiles
    schema: Mapping[str, str]
    logged_schema: Mapping[str, str]
    since_ms: int
    as_of_ms: int
    tags: tuple[StoredHold, ...]
    log_names: frozenset[str]
    put: Callable[[str, bytes], str]


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer wrote: the key of the object that engines begin with, and all keys that it leads to, itself too."""

    metadata_key: str
    objects: tuple[str, ...]


class PublicationWriter(Protocol):
    """Says what a publication is in an engine's words. Used for one table by one thread at a time."""

    def fits(self, table: Table, base: Publication) -> bool:
        """Whether a publication is still what this writer would write of the same log, and can be gone on from."""
        ...

    def require_fit(self, table: Table, log_names: AbstractSet[str], *, now_ms: int) -> None:
        """Raise what :meth:`write` raised of these very log files, if it would again, so that nothing is tried.

        Not for longer than a quarter of a grace period: what is tried says that the table is asked for (P5).
        """
        ...

    def live_paths(self, table: TableStore, base: Publication) -> Collection[str]:
        """Return the data files of a publication's current state: a set is asked fastest. Raises Unavailable."""
        ...

    def live_digest(self, table: TableStore, base: Publication) -> int | None:
        """Return what tells these data files from others, as :attr:`LiveFiles.digest`; ``None``: nobody knows."""
        ...

    def write(self, draft: Draft) -> Written:
        """Write the objects of a publication. Raises what keeps it from being made; nothing of it counts then."""
        ...

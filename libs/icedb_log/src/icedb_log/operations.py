"""Operations as they are asked for by name: what a request may say, and what its result says.

Workers of the stack run them as Celery tasks, ``--local`` and ``icedb work`` in their own process. Locks, metrics and
wake-ups are theirs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import ValidationError

from icedb_log.changes.partition_removal import PartitionInfo, RemovalResult, remove_partitions
from icedb_log.changes.row_changes import ChangeResult, delete_rows, rewrite_partitions
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportResult, data_url, import_files, make_options
from icedb_log.jobs import FileImporter, RowChanger
from icedb_log.log.requests import ChangeRequestId
from icedb_log.model import LogView
from icedb_log.results import Work
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters, select_partitions
from icedb_log.table.table_config import TableConfig
from icedb_log.texts import first_message

Hold = Callable[[], AbstractContextManager[Any]]
"""Returns what keeps other writers of this kind away while it is held."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change of rows as it was asked for. Make it with :meth:`parse`.

    Attributes:
        kind: Whether a condition deletes rows, or a query replaces those of partitions.
        sql: The condition, or the query over ``_rows``.
        partitions: Filters as text, all of which must hold; none of a deletion.
        is_dry_run: Only say what would be touched; it takes no fence.
        request_id: A UUIDv7: repeated under it within a day, the request says what it did the first time (M7). Not of
            a dry run. ``None``: it is carried out whenever it is asked for.
    """

    kind: Literal["delete", "rewrite"]
    sql: str
    partitions: tuple[str, ...] = ()
    is_dry_run: bool = False
    request_id: str | None = None

    @classmethod
    def parse(
        cls,
        table: str,
        *,
        kind: str,
        sql: str,
        partitions: Sequence[str] | None,
        dry_run: bool,
        request_id: str | None = None,
    ) -> Self:
        """Return a request. Raises InvalidRequest: its values are not what they have to be."""
        if kind not in ("delete", "rewrite"):
            raise InvalidRequest(f"table {table}: a change is 'delete' or 'rewrite', not {str(kind)[:80]!r}")
        if not isinstance(sql, str) or (kind == "delete" and partitions is not None):
            raise InvalidRequest(f"table {table}: a {kind} takes SQL as text, and partitions only for a rewrite")
        if kind == "rewrite" and not _are_texts(partitions):
            raise InvalidRequest(f"table {table}: a rewrite needs a list of partition filters; an empty one means all")
        if request_id is not None and not isinstance(request_id, str):
            raise InvalidRequest(f"table {table}: the id of a request is a text")
        return cls("delete" if kind == "delete" else "rewrite", sql, tuple(partitions or ()), bool(dry_run), request_id)

    def run(self, table: Table, changer: RowChanger) -> ChangeResult:
        """Change the rows. Raises as :func:`delete_rows` and :func:`rewrite_partitions`."""
        request = None
        if self.request_id is not None and not self.is_dry_run:
            request = ChangeRequestId.of(self.request_id, self.kind, self.sql, sorted(self.partitions))
        if self.kind == "delete":
            return delete_rows(table, changer, self.sql, dry_run=self.is_dry_run, request=request)
        matches = PartitionMatcher(parse_partition_filters(self.partitions), table.config)
        return rewrite_partitions(table, changer, self.sql, matches=matches, dry_run=self.is_dry_run, request=request)

    def describe(self, result: ChangeResult) -> Work:
        """Return what was done as the result of a task."""
        return Work.of(result, kind=self.kind, dry_run=self.is_dry_run)


def drop_partitions(
    table: Table, globs: Sequence[str], *, may_match_all: bool = False, dry_run: bool = False
) -> RemovalResult:
    """Remove the partitions that some globs mean, in one commit.

    Raises:
        InvalidRequest: A glob is wrong, matches nothing, or all match the whole table, and that is not allowed.
        IceDBError: As :func:`remove_partitions`.
    """
    if not _are_texts(globs):
        raise InvalidRequest(f"table {table.name}: globs must be a list of texts")

    def choose(_view: LogView, infos: tuple[PartitionInfo, ...]) -> Collection[str]:
        return select_partitions(table.name, globs, [info.path for info in infos], may_match_all=may_match_all)

    return remove_partitions(table, choose, dry_run=dry_run)


def parse_config(table: str, config: Mapping[str, Any]) -> TableConfig:
    """Return the configuration that a table is to have. Raises InvalidRequest."""
    try:
        return TableConfig.model_validate(config)
    except ValidationError as error:
        raise InvalidRequest(f"table {table}: configuration: {first_message(error)}") from error


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """An import as it was asked for: see :class:`~icedb_log.imports.imports.ImportOptions`.

    Attributes:
        sources: URLs, with wildcards; none: the files below the table's own data prefix, for ``in_place``.
    """

    sources: Sequence[str] = ()
    mode: str = "copy"
    partition: Mapping[str, str] | None = None
    dry_run: bool = False
    changed: bool = False
    assume: str | None = None

    def run(
        self,
        table: Table,
        importer: FileImporter,
        *,
        open_store: Callable[[str], ObjectStore],
        allowed: Sequence[str],
        hold: Hold,
    ) -> tuple[ImportResult, Work]:
        """Import the files; return what was done, and that as the result of a task.

        Args:
            table: The table.
            importer: Reads and copies files.
            open_store: Opens the store of a source by its URL.
            allowed: URL prefixes that sources may have; the table's own files are always allowed where they stay.
            hold: Held around each commit.

        Raises:
            InvalidRequest: What is asked for cannot be, or a source is not allowed.
            Unavailable: The log takes no commits now, or a store did not answer.
            IceDBError: As :func:`import_files`.
        """
        options = make_options(
            table.config, self.mode, self.partition, dry_run=self.dry_run, changed=self.changed, assume=self.assume
        )
        log_files = len(table.read_log().files)
        if log_files >= MAX_LOG_FILES and not options.is_dry_run:
            raise Unavailable(
                f"table {table.name}: the log has {log_files} files and takes no more than {MAX_LOG_FILES}: merges and "
                "vacuum have to bring it down first"
            )
        if not isinstance(self.sources, list | tuple) or not _are_texts(list(self.sources)):
            raise InvalidRequest("import sources are a list of URLs")
        own_files = [data_url(table)] if options.mode == "in_place" else []
        found = list_sources(
            [parse_pattern(text) for text in self.sources or own_files],
            open_store=open_store,
            allowed=[*allowed, *own_files],
        )
        result = import_files(table.renewed(), importer, found, options=options, hold=hold)
        return result, Work.of(result, mode=self.mode, sources=len(found))


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)

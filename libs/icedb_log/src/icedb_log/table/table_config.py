"""A table's configuration: partition spec, sort order, declared schema, policies.

Owns the model of ``_icedb/table.json``, and which values it takes. How it is read and created is
:mod:`icedb_log.table.stored_config`; what of it may change later, and how, :mod:`icedb_log.changes.table_changes`.

The mark of a dropped table stands in it (T1 to T5). States, each change by compare-and-set, and who makes it::

    (none) ── drop ──▶ trash ── due, or --purge ──▶ purging ── nothing is left ──▶ purged
       ▲                 │
       └───── undrop ────┘

The next table of a purged name lies under another prefix (T4).

Drop, undrop, create and --purge are a person's, the others the janitor's. When a table was dropped is the LastModified
of ``table.json``, by the store's clock (T1): so nothing else may write a marked one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from icedb_log.clock import format_ms
from icedb_log.errors import InvalidRequest, TableNotFound
from icedb_log.keys import check_table_name
from icedb_log.table.decimals import EXAMPLE, find_decimal, spell_decimal
from icedb_log.table.promoted_paths import MAX_PROMOTED, PROMOTE_LIMIT, find_path_problem, spell_path
from icedb_log.table.time_columns import (
    PLAUSIBLE_FROM_MS,
    PLAUSIBLE_TO_MS,
    RANGED_TYPES,
    TIME_UNITS,
    TimeColumn,
    TimeUnit,
)
from icedb_log.texts import Text, did_you_mean, first_message
from icedb_log.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS, SECOND_MS

DropState = Literal["trash", "purging", "purged"]
"""``trash``: all is there, undrop brings it back; ``purging``: being deleted; ``purged``: gone, the name is free."""

MAX_NOTE_CHARS: Final = 2000

CONFIG_CACHE_TTL_MS: Final = 10_000
"""How long a process that answers many readers uses a configuration without reading it again. Policies may change
meanwhile, partition and sort order may not; a dropped table stays in the trash for as much longer (T1)."""


class Dropped(BaseModel):
    """That a table is dropped, and what becomes of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: DropState
    drop_id: Text
    """Unique for each drop, so that no content, hence no ETag, comes back (T1)."""
    keep_ms: Annotated[int, Field(ge=0)]
    """How long it stays in the trash, from the drop, by the store's clock."""
    dropped_ms: int | None = None
    """When it was dropped, unix ms by the store's clock; ``None`` in the trash: then it is LastModified."""
    dropped_by: Text = ""
    note: Text = ""
    is_forced: bool = False
    """Whether it went past the trash, for people."""
    is_final: bool = False
    """Whether the last look at what came late was taken (T5)."""
    newest: Annotated[int, Field(ge=2)] | None = None
    """Of the first table of a name, once it is purged: which one is the newest of the name (T4)."""


def table_not_found(name: str, known: Iterable[str] = (), *, empty: str = "") -> TableNotFound:
    """Return the error for a table that is not there, or that its caller may not know of.

    Args:
        name: What was asked for.
        known: Tables that are there, and that the caller may know of: those that are close are named.
        empty: Where there is no table at all, if so.
    """
    if empty:
        why = f": {empty} has no table yet; create it with `icedb table create {name}`, or correct ICEDB_STORE"
    else:
        why = did_you_mean(name, known) or "; see `icedb table list`, or create it with `icedb table create`"
    return TableNotFound(f"table {name[:80]!r} does not exist{why}", table=name)


def describe_drop(name: str, mark: Dropped, *, modified_ms: int) -> str:
    """Return what whoever asks for a dropped table is told: since when, and what to do."""
    who = f" by {mark.dropped_by}" if mark.dropped_by else ""
    since = f"{format_ms(mark.dropped_ms or modified_ms)}{who}"
    if mark.state == "trash":
        return f"table {name!r} was dropped at {since} and is in the trash; `icedb table undrop {name}` brings it back"
    if mark.state == "purging":
        return (
            f"table {name!r} was dropped at {since} and is being purged: nothing brings it back; "
            "`icedb table list --trash` shows how far that is"
        )
    return f"table {name!r} does not exist: it was dropped at {since} and purged; see `icedb table list`"


TimeTransform = Literal["year", "month", "day", "hour"]
WidthTransform = Literal["bucket", "truncate"]
Transform = Literal["identity", TimeTransform, WidthTransform]
TRANSFORMS: Final[tuple[str, ...]] = get_args(Transform)
TIME_TRANSFORMS: Final[tuple[str, ...]] = get_args(TimeTransform)
"""The finest last."""
WIDTH_TRANSFORMS: Final[tuple[str, ...]] = get_args(WidthTransform)

SQL_TYPES: Final = ("BIGINT", "BOOLEAN", "DATE", "DOUBLE", "TIMESTAMP", "VARCHAR")
"""The one canonical spelling of each type that this project writes to a schema line (wire rule); besides them
``DECIMAL(p,s)`` (:mod:`icedb_log.table.decimals`)."""
TYPE_NAMES: Final = (*SQL_TYPES[:2], EXAMPLE, *SQL_TYPES[2:])
"""How types are listed for people."""
_OTHER_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("INT", "INTEGER", "LONG"), "BIGINT"),
    **dict.fromkeys(("STRING", "TEXT", "JSON"), "VARCHAR"),
    "FLOAT": "DOUBLE",
    **dict.fromkeys(("DECIMAL", "NUMERIC"), f"{EXAMPLE}, with its digits"),
    "DATETIME": "TIMESTAMP",
}

WIDENINGS: Final = (("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP"))
"""From which type to which a column may be widened."""

Evolution = Literal["strict", "add_columns", "widen"]
"""``strict``: only declared columns; ``add_columns``: new columns appear, types stay; ``widen``: a column may also
become wider (:data:`WIDENINGS`) where no value loses anything, or where the wider type is declared."""

KeyMemory = Literal["day", "retry"]
"""``day``: a record for each key, by two small writes; ``retry``: the key is part of the batch's id, and is known while
the log names that (I7)."""

BadRowsPolicy = Literal["quarantine_batch", "quarantine_rows"]
"""``quarantine_batch``: one bad row and the whole batch waits in quarantine; ``quarantine_rows``: only its bad rows."""

MAX_COLUMN_NAME_BYTES: Final = 255
OF_ARROW: Final = frozenset({"__batch_index", "__filename", "__fragment_index", "__last_in_fragment"})
"""Columns that Arrow's datasets have besides those of the file: PyArrow, PyIceberg and DuckDB over Arrow."""
QUERIES: Final = ("insert_query", "merge_query", "view_query")
"""Fields that hold a query."""

MAX_QUERY_BYTES: Final = 100_000
"""Of an ``insert_query``, a ``merge_query`` or a ``view_query``."""

_PARTITION_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
_PLAIN_COLUMN: Final = r"[^()\[\]=]+"
_PARTITION_TEXT: Final = re.compile(
    r"(?:(?P<name>[^=]+)=)?\s*"
    rf"(?:(?P<transform>[a-z]+)(?:\[(?P<width>\d+)\])?\((?P<source>.+)\)|(?P<column>{_PLAIN_COLUMN}))"
)


MIN_GRACE_MS: Final = SECOND_MS
"""No grace period is shorter: AWS S3 tells LastModified in whole seconds, so a shorter age is none (J1)."""
MIN_ORPHAN_AGE_MS: Final = 2 * MIN_GRACE_MS
"""A commit gives up after half the orphan age (W3), and that half is measured by the same clock."""
_FLOORS_MS: Final = {
    "data_grace_ms": MIN_GRACE_MS,
    "log_grace_ms": MIN_GRACE_MS,
    "orphan_age_ms": MIN_ORPHAN_AGE_MS,
    "seal_age_ms": MIN_GRACE_MS,
    "audit_retention_ms": MIN_GRACE_MS,
}
ASKED_FLOORS: Final[Mapping[str, int]] = {
    "data_grace_ms": MINUTE_MS,  # a query that has begun reads files that die meanwhile
    "log_grace_ms": 30 * SECOND_MS,  # a reader's refresh has half of it (R2), a producer's retries three quarters (I3)
    "orphan_age_ms": HOUR_MS,  # a merge, an import or a deletion has to be committed within half of it (W3)
}
"""Least values of times. The command and the HTTP API take no less, although the configuration does."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartitionField(_Model):
    """One level of the partition path: ``<name>=<transform of column>``.

    Text form, as the CLI takes it: ``d=day(ts)``, ``u=bucket[16](user_id)``, ``p=truncate[2](country)``, ``event``;
    ``k=identity(a(b))`` for a column whose name has brackets or ``=``.
    """

    name: str
    transform: Transform = "identity"
    column: str
    width: int | None = Field(default=None, ge=1, le=1_000_000)
    unit: TimeUnit | None = Field(default=None, exclude=True)
    """What the numbers of the column count, if it is a time: the table's configuration fills it in."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _PARTITION_NAME.fullmatch(self.name):
            raise ValueError(f"partition name {self.name[:80]!r}: use 1 to 64 of A-Z, a-z, 0-9 and _")
        check_column_name(self.column)
        if (self.width is not None) != (self.transform in WIDTH_TRANSFORMS):
            needs = "needs" if self.width is None else "takes no"
            raise ValueError(f"partition {self.name}: {self.transform} {needs} width, e.g. bucket[16](user_id)")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form. Raises InvalidRequest with the allowed forms."""
        match = _PARTITION_TEXT.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError("not understood")
            column = (match["source"] or match["column"]).strip()
            transform = match["transform"] or "identity"
            if transform not in TRANSFORMS:
                raise ValueError(f"there is no {transform!r}{did_you_mean(transform, TRANSFORMS)}")
            if not match["transform"] and column in TRANSFORMS and (match["name"] or column).strip() != column:
                raise ValueError(f"say of which column, {column}(ts); identity({column}) is the column {column!r}")
            width = int(match["width"]) if match["width"] else None
            default_name = column if transform == "identity" else f"{column}_{transform}"
            name = (match["name"] or default_name).strip()
            return cls.model_validate({"name": name, "transform": transform, "column": column, "width": width})
        except ValueError as error:
            raise InvalidRequest(
                f"partition {text[:80]!r}: {first_message(error)}; write name=column, "
                f"name={'|'.join(TIME_TRANSFORMS)}(column), name=bucket[n](column) or name=truncate[n](column)"
            ) from error

    def __str__(self) -> str:
        if self.transform == "identity" and re.fullmatch(_PLAIN_COLUMN, self.column):
            if self.name == self.column:
                return self.column
            if self.column not in TRANSFORMS:
                return f"{self.name}={self.column}"
        width = f"[{self.width}]" if self.width is not None else ""
        return f"{self.name}={self.transform}{width}({self.column})"


class TableConfig(_Model):
    """Everything about a table that is not in its log.

    The command line makes its options of these fields: what stands below a field is their help.
    """

    format_version: Literal[1] = 1
    name: str
    partition: tuple[PartitionField, ...] = ()
    sort: tuple[str, ...] = ()
    declared: dict[str, str] = Field(default_factory=dict)
    """Column name to SQL type; a declared type wins over what JSON looks like."""
    times: dict[str, TimeColumn] = Field(default_factory=dict)
    """Of declared columns that are times: what their numbers count, and which times are plausible."""
    promoted: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Of declared columns whose values are taken out of JSON text: the column that has the text, then the keys. In the
    order in which they were promoted (S4); without a path nothing fills the column any more."""
    promoted_below: tuple[tuple[str, ...], ...] = ()
    """A column of JSON text, with keys or none: paths below that are frequent are promoted by themselves."""
    evolution: Evolution = "widen"
    """strict: only declared columns; add_columns: new ones appear; widen: BIGINT may also become DOUBLE, and DATE
    TIMESTAMP, where no value loses anything."""
    on_bad_rows: BadRowsPolicy = "quarantine_rows"
    """What waits in quarantine: quarantine_batch: the whole batch; quarantine_rows: only its bad rows."""
    key_memory: KeyMemory = "day"
    """For how long a producer's own key is known. day: a day, by two small writes for each batch; retry: half of the
    log_grace, for nothing. A key that is sent before and after a change counts twice."""
    insert_query: Text | None = None
    """SQL over ``_rows`` that every flush runs on the rows it read; its result is what the table gets."""
    source: dict[str, str] = Field(default_factory=dict)
    """Column name to SQL type of ``_rows``: what batches hold before the ``insert_query``."""
    merge_query: Text | None = None
    """SQL over ``source_files`` that every merge runs on the rows it merges; its result replaces them."""
    view_of: str | None = None
    """The table whose commits feed this one, a view, by its query; batches are refused then."""
    view_query: Text | None = None
    """Of a view: SQL over ``_rows``, the rows that commits of its source made live; its result feeds it."""
    view_backfill: Literal["on", "off"] = "off"
    """Of a view. on: it begins with the rows that its source has when it is created (V3)."""
    retention_ms: Annotated[int, Field(ge=HOUR_MS)] | None = None
    """How long a time partition is kept after its end, e.g. 90d; ``None``: for ever. Rows beyond it are removed."""
    target_file_bytes: Annotated[int, Field(ge=1024)] = 128 * MIB
    """Data files of at least this size are mature: a merge leaves them alone."""
    row_group_rows: Annotated[int, Field(ge=2048)] = 524_288
    merge_fan_in: Annotated[int, Field(ge=2, le=1000)] = 8
    """Files of one size tier that are merged at once, from 2; higher rewrites less and leaves more files."""
    max_partitions_per_flush: Annotated[int, Field(ge=1, le=10_000)] = 1000
    """Partitions of one commit; batches beyond it go into the next one. A batch is never cut: one that has more
    partitions is committed alone."""
    data_grace_ms: int = 6 * HOUR_MS
    """How long a dead data file stays: longer than the longest query. At least 1 min; alter makes it longer only."""
    log_grace_ms: int = 10 * MINUTE_MS
    """How long a dead log file stays: bounds time travel and the retry window of a batch (J1, I3). At least 30 s."""
    orphan_age_ms: int = DAY_MS
    """A data file that no log file names is an orphan, and deleted, after this (J5); a commit gives up after half of
    it (W3). At least 1 h; alter makes it longer only."""
    seal_age_ms: int = 7 * DAY_MS
    """How long a seal is kept: far longer than any request lives (F4)."""
    audit_retention_ms: int = 90 * DAY_MS
    """How long it is kept what the janitor deleted, and why."""
    quarantine_retention_ms: Annotated[int, Field(ge=HOUR_MS)] | None = None
    """How long refused batches and bad rows are kept in quarantine, e.g. 90d; at least 1h; ``None``: for ever."""
    iceberg: Literal["on-demand", "on-commit"] = "on-demand"
    """When a state is published for engines that speak Iceberg: on-demand: when one asks the catalog for it; on-commit:
    also a few seconds after each commit, for engines that read metadata files without a catalog."""
    iceberg_bounds: Literal["on", "off"] = "on"
    """Whether engines that speak Iceberg are told the least and greatest values of columns in each data file; off: they
    prune by partitions alone."""
    undropped: Text = ""
    """The id of the last drop that was taken back: no content, hence no ETag, ever comes back (T1)."""
    dropped: Dropped | None = None
    """That the table is dropped; who works on tables never sees one that is."""

    @field_validator("name", "view_of")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        try:
            return None if name is None else check_table_name(name)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error

    @field_validator(*_FLOORS_MS)
    @classmethod
    def _check_floor(cls, value_ms: int, info: ValidationInfo) -> int:
        floor_ms = _FLOORS_MS[str(info.field_name)]
        if value_ms < floor_ms:
            raise ValueError(
                f"{value_ms} ms is below the floor of {floor_ms} ms: object stores tell times in whole seconds, so "
                "that nothing shorter can be kept to; give a longer one"
            )
        return value_ms

    @field_validator("times")
    @classmethod
    def _drop_empty(cls, times: dict[str, TimeColumn]) -> dict[str, TimeColumn]:
        return {column: time for column, time in times.items() if time != TimeColumn()}

    @field_validator("sort")
    @classmethod
    def _check_sort(cls, sort: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_column_name(column) for column in sort)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [field.name.lower() for field in self.partition]
        if len(set(names)) != len(names):
            raise ValueError("two partition fields have the same name")
        if len(set(self.sort)) != len(self.sort):
            raise ValueError("a sort column is named twice")
        for column, sql_type in self.declared.items():
            _check_type(column, sql_type)
        _check_case(self.declared, "declared columns")
        for field in self.partition:
            declared = self.declared.get(field.column)
            is_time = declared in ("TIMESTAMP", "DATE") or (declared == "BIGINT" and self._unit_of(field.column))
            if field.transform in TIME_TRANSFORMS and not is_time:
                raise ValueError(
                    f"partition {field}: column {field.column} must be declared TIMESTAMP or DATE, or as the unit of "
                    f"a time that is a BIGINT ({', '.join(TIME_UNITS)})"
                )
            if field.transform in ("identity", "truncate") and declared == "DOUBLE":
                raise ValueError(f"partition {field}: a DOUBLE makes no usable partition; use bucket[n]")
        if self.log_grace_ms > self.data_grace_ms:
            raise ValueError(f"log_grace_ms {self.log_grace_ms} > data_grace_ms {self.data_grace_ms}")
        return self

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        for column, time in self.times.items():
            declared = self.declared.get(column)
            if time.unit is not None and declared not in ("BIGINT", "TIMESTAMP"):
                raise ValueError(f"column {column}: {time.unit} is the unit of a BIGINT or TIMESTAMP, not {declared}")
            if time.from_ms is not None and (
                declared not in RANGED_TYPES or (declared == "BIGINT" and time.unit is None)
            ):
                raise ValueError(
                    f"column {column}: only a declared time has a plausible range: TIMESTAMP, DATE, or a BIGINT with "
                    f"a unit ({', '.join(TIME_UNITS)})"
                )
        fields = tuple(
            field if field.unit == unit else field.model_copy(update={"unit": unit})
            for field, unit in ((field, self._unit_of(field.column)) for field in self.partition)
        )
        object.__setattr__(self, "partition", fields)  # derived: what makes partition values needs the unit
        return self

    @model_validator(mode="after")
    def _check_promoted_below(self) -> Self:
        for path in self.promoted_below:
            column = next(iter(path), "")
            if self.declared.get(column) != "VARCHAR" or column in self.promoted:
                raise ValueError(
                    f"promoted below {spell_path(path)}: the column must be declared VARCHAR, which JSON text is"
                )
        return self

    @model_validator(mode="after")
    def _check_promoted(self) -> Self:
        if len(self.promoted) > MAX_PROMOTED:
            raise ValueError(f"{len(self.promoted)} promoted paths; at most {MAX_PROMOTED}")
        for column, path in self.promoted.items():
            if not path:
                continue
            problem = find_path_problem(path)
            if problem is not None:
                raise ValueError(f"promoted column {column[:80]!r}: {problem}")
            found = f"promoted column {column[:80]!r}, from {spell_path(path)}"
            if column not in self.declared:
                raise ValueError(f"{found}: declare its type")
            if path[0] in self.promoted:
                raise ValueError(f"{found}: {path[0]!r} is promoted itself; begin with the column that has the text")
            if self.declared.get(path[0]) != "VARCHAR":
                raise ValueError(
                    f"{found}: column {path[0]!r} must be declared VARCHAR, which JSON text is, not "
                    f"{self.declared.get(path[0])}"
                )
            field = next((each for each in self.partition if each.name.lower() == column.lower()), None)
            if field is not None and field.column != column:
                raise ValueError(f"{found}: it is named like the partition {field}; give it another name, … as NAME")
        return self

    def _unit_of(self, column: str) -> TimeUnit | None:
        time = self.times.get(column)
        return None if time is None else time.unit

    @model_validator(mode="after")
    def _check_ingest(self) -> Self:
        if self.source and self.insert_query is None:
            raise ValueError("source columns make sense with an insert_query only; declare the table's columns instead")
        for name, view in (("insert_query", "_rows"), ("merge_query", "source_files"), ("view_query", "_rows")):
            query = getattr(self, name)
            if query is not None and (not query.strip() or len(query.encode()) > MAX_QUERY_BYTES):
                raise ValueError(
                    f"{name} of {len(query.encode())} bytes: give a query over {view} of at most {MAX_QUERY_BYTES}, "
                    "or none"
                )
        if self.evolution == "strict" and not self.declared:
            raise ValueError("evolution 'strict' takes declared columns only, but none is declared: declare them")
        _check_case(self.source, "source columns")
        for column, sql_type in self.source.items():
            _check_type(column, sql_type, kind="source column")
        return self

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        if (self.view_of is None) != (self.view_query is None):
            raise ValueError("a view needs both: view_of, the table that feeds it, and view_query")
        if self.has_backfill and self.view_of is None:
            raise ValueError("view_backfill: only a view has a source whose rows it can begin with")
        if self.view_of is not None:
            if self.view_of == self.name:
                raise ValueError("view_of: a view cannot feed itself")
            if self.insert_query is not None:
                raise ValueError("a view has a view_query instead of an insert_query")
        return self

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        if self.retention_ms is not None and self.age_field is None:
            raise ValueError("retention_ms needs a time partition, e.g. d=day(ts)")
        return self

    @classmethod
    def create(cls, **fields: object) -> Self:
        """Build a configuration; sources of time partitions that are not declared become TIMESTAMP.

        Promoted columns and those that have their text become VARCHAR.

        Raises:
            InvalidRequest: With the first thing that is wrong.
        """
        declared, partition = fields.get("declared") or {}, fields.get("partition") or ()
        if isinstance(declared, Mapping) and isinstance(partition, list | tuple):
            known = [field for field in partition if isinstance(field, PartitionField)]
            times = {field.column: "TIMESTAMP" for field in known if field.transform in TIME_TRANSFORMS}
            promoted = fields.get("promoted")
            for column, path in promoted.items() if isinstance(promoted, Mapping) else ():
                texts = (path[0], column) if isinstance(path, list | tuple) and path else (column,)
                times = {**dict.fromkeys((each for each in texts if isinstance(each, str)), "VARCHAR"), **times}
            declared = {**declared, **{column: kind for column, kind in times.items() if column not in declared}}
        if unknown := next((name for name in fields if name not in cls.model_fields), None):
            meant = did_you_mean(unknown, cls.model_fields)
            raise InvalidRequest(f"table configuration: {unknown} is no setting of a table{meant}")
        try:
            return cls.model_validate({**fields, "declared": declared})
        except ValidationError as error:
            raise InvalidRequest(f"table configuration: {first_message(error)}") from error

    def find_promoted(self, columns: Iterable[str]) -> dict[str, str]:
        """Return the promoted columns, with types, whose text is in some columns."""
        there = set(columns)
        return {column: self.declared[column] for column, path in self.promoted.items() if path and path[0] in there}

    def find_hidden(self, schema: Collection[str]) -> dict[str, str]:
        """Return the promoted columns, with types, that the log's schema lacks: data files may have them (S4)."""
        return {column: self.declared[column] for column in self.promoted if column not in schema}

    @property
    def promote_room(self) -> int:
        """How many paths may still be promoted by themselves; not above zero: none."""
        filled_count = sum(map(bool, self.promoted.values()))
        return min(PROMOTE_LIMIT - filled_count, MAX_PROMOTED - len(self.promoted))

    def count_promoted(self, columns: Collection[str] | None = None) -> int:
        """Return how many promoted paths, from the first on, have to be counted to have all that are filled (S4).

        Args:
            columns: Those of them that matter; all if not given.
        """
        filled = (column for column, path in self.promoted.items() if path)
        places = {column: place for place, column in enumerate(self.promoted, 1)}
        return max((places[column] for column in filled if columns is None or column in columns), default=0)

    def find_filled(self, schema: Collection[str], *, fewest: int) -> dict[str, str]:
        """Return the hidden columns, with types, that readers may see: every live data file has so many paths (S4)."""
        hidden = self.find_hidden(schema)
        paths = enumerate(self.promoted.items())
        return {
            column: hidden[column] for place, (column, path) in paths if path and place < fewest and column in hidden
        }

    def count_in(self, columns: Collection[str]) -> int:
        """Return how many promoted paths, from the first on, a data file has by its columns (S4).

        It lacks one if it has the text and not the column: all rows of a file are made by one configuration.
        """
        lacks = (path and path[0] in columns and column not in columns for column, path in self.promoted.items())
        return next((place for place, each in enumerate(lacks) if each), len(self.promoted))

    @property
    def age_field(self) -> PartitionField | None:
        """The finest time partition field of the first time; ``None``: the table has none. By it rows expire."""
        fields = [field for field in self.partition if field.transform in TIME_TRANSFORMS]
        of_first = (field for field in fields if field.column == fields[0].column)
        return max(of_first, key=lambda field: TIME_TRANSFORMS.index(field.transform), default=None)

    @property
    def has_backfill(self) -> bool:
        """Whether this is a view that begins with the rows of its source."""
        return self.view_backfill == "on"

    @property
    def retry_window_ms(self) -> int:
        """How long after a batch id was made a producer may still stage the batch (I3)."""
        return self.log_grace_ms - self.id_skew_ms

    @property
    def id_skew_ms(self) -> int:
        """How far a batch id may lie in the store's future (I3): a quarter of the log files' grace period."""
        return self.log_grace_ms // 4


def with_plausible_times(config: TableConfig, *, said: Mapping[str, Mapping[str, object]] | None) -> TableConfig:
    """Return the configuration of a new table: times that partitions come from have a plausible range.

    Args:
        config: As it was asked for.
        said: What was asked for of times, by column; a column with an explicit range, or none, keeps that.
    """
    times = dict(config.times)
    for column in dict.fromkeys(field.column for field in config.partition):
        time, declared = times.get(column, TimeColumn()), config.declared.get(column)
        is_time = declared in ("DATE", "TIMESTAMP") or (declared == "BIGINT" and time.unit is not None)
        if is_time and "from_ms" not in (said or {}).get(column, {}):
            times[column] = time.model_copy(update={"from_ms": PLAUSIBLE_FROM_MS, "to_ms": PLAUSIBLE_TO_MS})
    return TableConfig.create(**{**dict(config), "times": times})


def unite_columns(logged: Mapping[str, str], config: TableConfig) -> dict[str, str]:
    """Return the columns of a table as readers see them: those of the log, then those that are only declared.

    None that is hidden (S4); but the first commit of a table shows all.

    Args:
        logged: Column to SQL type, as a snapshot has it.
        config: Of the table; a type that is declared and not in the log yet changes nothing.
    """
    hidden = config.find_hidden(logged) if logged else {}
    spelling = {name.lower() for name in (*logged, *hidden)}
    return {**logged, **{name: kind for name, kind in config.declared.items() if name.lower() not in spelling}}


def require_takes_batches(config: TableConfig) -> None:
    """Refuse batches and imports for a view: its rows come from its source alone (V1).

    Raises:
        InvalidRequest: The table is a view.
    """
    if config.view_of is not None:
        raise InvalidRequest(
            f"table {config.name!r} is a view of {config.view_of!r}: it takes no batches and no imports; "
            f"send them to {config.view_of!r}, whose commits feed it"
        )


def check_column_name(column: str) -> str:
    """Return the column name if it can be one, else raise ValueError (printable, not empty, at most 255 bytes)."""
    if column in OF_ARROW:
        raise ValueError(f"column name {column!r}: Arrow reads no file with it, as it has a column of that name itself")
    if not column or not column.isprintable() or len(column.encode()) > MAX_COLUMN_NAME_BYTES:
        raise ValueError(f"column name {column[:80]!r}: use 1 to {MAX_COLUMN_NAME_BYTES} bytes of printable characters")
    return column


def _check_case(columns: Iterable[str], what: str) -> None:
    spelling: dict[str, str] = {}
    for column in columns:
        other = spelling.setdefault(column.lower(), column)
        if other != column:
            raise ValueError(f"{what} {other!r} and {column!r} differ only in case: use one spelling")


def _check_type(column: str, sql_type: str, *, kind: str = "column") -> None:
    check_column_name(column)
    if not is_known_type(sql_type):
        ours = _OTHER_TYPES.get(sql_type.upper()) or spell_decimal(sql_type)
        close = f"; here it is {ours}" if ours else did_you_mean(sql_type, SQL_TYPES)
        raise ValueError(f"{kind} {column}: type {sql_type!r} is unknown{close}; use one of {', '.join(TYPE_NAMES)}")


def is_known_type(sql_type: str) -> bool:
    """Return whether this project writes columns of a type."""
    return sql_type in SQL_TYPES or find_decimal(sql_type) is not None

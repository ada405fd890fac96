"""A first look at a table: what is in its columns.

Figures come from what is written down already: the log has bounds and nulls of the columns that a table is partitioned
or sorted by, the footers of data files have those of all others. The number of distinct values is in neither: the
rows of a small table are read for it, those of others never. Each figure says how well it is known
(:data:`Known`), and is never less certain than it says. How many files are opened is bounded. Which paths stand in JSON
text is seen in a sample of the rows, a bounded number.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from icedb_log.errors import InvalidRequest
from icedb_log.table.column_bounds import MAX_BOUND_CHARS
from icedb_log.table.path_shares import PathShare, find_path_shares
from icedb_log.texts import quote_name, quote_text
from icedb_log.units import MIB

from icedb_client.duck import checked_types, explained, interruptible, lock, open_duckdb, prepare, select_from
from icedb_client.file_list import PickedFiles
from icedb_client.requests import SnapshotFiles

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Known = Literal["exact", "bound", "estimate", "unknown"]
"""How well a figure is known. ``bound``: no value lies outside, or there are at least so many. ``estimate``: it is that
of a part of the files, or comes from a sketch."""

MAX_FILES: Final = 10_000
"""Most data files that one description opens."""
SMALL_ROWS: Final = 100_000
SMALL_BYTES: Final = 16 * MIB
"""A table of so many rows and bytes at most is small: its rows are read without being asked for."""
_BOOLEAN_VALUES: Final = 2
SAMPLED_FILES: Final = 4
SAMPLED_TEXTS: Final = 512
"""Of each of these files, whose paths are looked at."""
MIN_SHARE: Final = 0.01
MAX_PATHS: Final = 256
DISTINCT_AT_ONCE: Final = 50
"""Columns whose values are counted by one query."""


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """What is known of one column.

    Attributes:
        name: Its name.
        type: Its SQL type.
        null_share: Part of the rows in which it is null, 0 to 1; ``None`` if unknown.
        nulls_known: How well that is known.
        distinct_count: Number of its values, null aside; ``None`` if unknown.
        distinct_known: How well that is known.
        min: Its least value, NaN aside; ``None`` if unknown, or if all are null.
        max: Its greatest value, as ``min``.
        range_known: How well both are known.
        promoted_from: Of a promoted column: the column that has the text its values are taken from, then the keys.
    """

    name: str
    type: str
    null_share: float | None = None
    nulls_known: Known = "unknown"
    distinct_count: int | None = None
    distinct_known: Known = "unknown"
    min: Any = None
    max: Any = None
    range_known: Known = "unknown"
    promoted_from: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PathDescription:
    """A path below a column of JSON text, as far as a sample tells.

    Attributes:
        path: The column, then keys.
        share: Part of the sampled rows that have a value there, 0 to 1.
        type: Of a column that would take all of its values; ``None``: none would, or they are objects or arrays.
        column: The column that it is promoted to, if readers see one.
    """

    path: tuple[str, ...]
    share: float
    type: str | None
    column: str | None


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """The values of one partition field: how many, the least and the greatest; ``None``: there is only null."""

    name: str
    count: int
    min: str | None
    max: str | None


@dataclass(frozen=True, slots=True)
class TableDescription:
    """What is known of a table.

    Attributes:
        table: Its name.
        snapshot_id: The snapshot that is described.
        row_count: Its rows; ``None`` when some file does not say.
        size_bytes: Bytes of its data files.
        file_count: Number of its data files.
        last_commit_ms: Time of the newest commit; ``None`` before the first one.
        partitions: The values of each partition field.
        columns: Its columns, in the order of the schema.
        source: What was read: the ``log`` alone, ``footers``, too, or ``rows``.
        opened_count: How many data files were opened for it.
        paths: What stands in columns of JSON text in at least one of 100 sampled rows, the most frequent first; empty
            if no rows may be read.
    """

    table: str
    snapshot_id: str
    row_count: int | None
    size_bytes: int
    file_count: int
    last_commit_ms: int | None
    partitions: tuple[PartitionSpan, ...]
    columns: tuple[ColumnDescription, ...]
    source: Literal["log", "footers", "rows"]
    opened_count: int
    paths: tuple[PathDescription, ...] = ()


@dataclass(slots=True)
class _Facts:
    """What one source says of one column: of how many rows, and whether these are all rows of the table."""

    rows: int
    nulls: int | None
    low: Any = None
    high: Any = None
    is_ranged: bool = False
    is_exact: bool = True
    distinct: int | None = None
    distinct_known: Known = "unknown"
    is_whole: bool = True

    def describe(self, name: str, sql_type: str) -> ColumnDescription:
        """Return it as readers get it."""
        known: Known = "exact" if self.is_whole else "estimate"
        share = None if self.nulls is None else self.nulls / self.rows if self.rows else 0.0
        has_range = self.is_ranged and (self.low is not None or self.nulls == self.rows)
        count, count_known = self._count(sql_type)
        return ColumnDescription(
            name,
            sql_type,
            share,
            "unknown" if share is None else known,
            count,
            "bound" if count_known == "exact" and not self.is_whole else count_known,
            self.low if has_range else None,
            self.high if has_range else None,
            "unknown" if not has_range else known if self.is_exact or not self.is_whole else "bound",
        )

    def _count(self, sql_type: str) -> tuple[int | None, Known]:
        """Return the number of values, from bounds where these tell it."""
        if self.distinct_known == "exact":
            return self.distinct, "exact"
        if self.nulls == self.rows:
            return 0, "exact"
        if self.is_ranged and self.is_exact and sql_type not in ("DOUBLE", "FLOAT"):  # NaN is not among the bounds
            if self.low == self.high:
                return 1, "exact"
            if sql_type == "BOOLEAN":
                return _BOOLEAN_VALUES, "exact"
        return self.distinct, self.distinct_known


def describe_snapshot(snapshot: SnapshotFiles, *, files: int) -> TableDescription:
    """See :meth:`Snapshot.describe`."""
    if snapshot.where is not None:
        raise InvalidRequest("statistics know no condition: describe a snapshot without where")
    if not 0 <= files <= MAX_FILES:
        raise InvalidRequest(f"files={files}: give 0 to {MAX_FILES}, how many data files may be opened")
    total = len(snapshot.files)
    opened = min(files, total)
    picked = replace(snapshot, files=PickedFiles(snapshot.files[at * total // opened] for at in range(opened)))
    facts: dict[str, _Facts] = {}
    source: Literal["log", "footers", "rows"] = "log"
    with open_duckdb() as con:
        con.register("listed", snapshot.files.to_arrow())
        prepare(con, snapshot)
        lock(con, picked.files.uris)
        spans = tuple(_span(con, name) for name in snapshot.partition_names) if total else ()
        if total:
            facts = _read_log(con, snapshot)
        missing = [name for name in snapshot.schema if name not in facts or not facts[name].is_ranged]
        if opened and missing:
            source = "footers"
            with explained(snapshot), interruptible(con):
                found = _read_footers(con, picked, missing)
            for name, each in found.items():
                each.is_whole = opened == total
                if name not in facts or each.is_whole:
                    facts[name] = each  # else the log knows the nulls of all rows, and no bounds: not if there is NaN
        else:
            opened = 0
        is_small = (snapshot.row_count or 0) <= SMALL_ROWS and snapshot.size_bytes <= SMALL_BYTES
        if 0 < total <= files and is_small and snapshot.row_count:
            source, opened = "rows", total
            with explained(snapshot), interruptible(con):
                _count_distinct(con, picked, facts)
        shares = _sample_paths(con, picked, facts) if opened else []
    table = None if snapshot.answerer is None else snapshot.answerer.table(snapshot.table)
    fields = () if table is None else table.partition_fields
    identities = {field.name: field.column for field in fields if field.transform == "identity"}
    for span in spans:  # of these columns each partition has one value
        column = facts.get(identities.get(span.name, ""))
        if column is not None:
            column.distinct, column.distinct_known = span.count, "exact"
    promoted = {} if table is None else table.promoted
    columns = (
        replace(
            facts[name].describe(name, sql_type) if name in facts else ColumnDescription(name, sql_type),
            promoted_from=promoted.get(name),
        )
        for name, sql_type in snapshot.schema.items()
    )
    return TableDescription(
        table=snapshot.table,
        snapshot_id=snapshot.snapshot_id,
        row_count=snapshot.row_count,
        size_bytes=snapshot.size_bytes,
        file_count=total,
        last_commit_ms=snapshot.last_commit_ms,
        partitions=spans,
        columns=tuple(columns),
        source=source,
        opened_count=opened,
        paths=_describe_paths(shares, {path: name for name, path in promoted.items() if name in snapshot.schema}),
    )


def _sample_paths(con: "DuckDBPyConnection", picked: SnapshotFiles, facts: Mapping[str, _Facts]) -> list[PathShare]:
    """Return the paths in columns that begin like JSON objects in all rows, as far as their bounds tell."""
    texts = [
        name
        for name, each in facts.items()
        if isinstance(each.low, str) and isinstance(each.high, str) and each.low[:1] == each.high[:1] == "{"
    ]
    count = min(SAMPLED_FILES, len(picked.files))
    files = [picked.files[at * len(picked.files) // count] for at in range(count)]
    shares: list[PathShare] = []
    with explained(picked), interruptible(con):
        for name in texts:
            found: list[str | None] = []
            for file in files:
                one = select_from(replace(picked, files=PickedFiles([file])), columns=[name])
                found += [text for (text,) in con.execute(f"{one} LIMIT {SAMPLED_TEXTS}").fetchall()]
            shares += find_path_shares(name, found)
    return shares


def _describe_paths(
    shares: Sequence[PathShare], promoted: Mapping[tuple[str, ...], str]
) -> tuple[PathDescription, ...]:
    frequent = sorted((each for each in shares if each.share >= MIN_SHARE), key=lambda each: (-each.share, each.path))
    return tuple(
        PathDescription(each.path, each.share, each.sql_type, promoted.get(each.path)) for each in frequent[:MAX_PATHS]
    )


def _span(con: "DuckDBPyConnection", name: str) -> PartitionSpan:
    values = con.execute(f"SELECT DISTINCT {quote_name(f'partition.{name}')} FROM listed").fetchall()  # noqa: S608
    known = [value for (value,) in values if value is not None]
    order = int if all(value.isdecimal() for value in known) else str
    return PartitionSpan(name, len(known), min(known, key=order, default=None), max(known, key=order, default=None))


def _read_log(con: "DuckDBPyConnection", snapshot: SnapshotFiles) -> dict[str, _Facts]:
    """Return what the log says of columns: of those alone whose nulls it knows in each file."""
    present = {name for (name, *_) in con.execute("DESCRIBE listed").fetchall()}
    names = [name for name in snapshot.schema if f"null_count.{name}" in present]
    if not names:
        return {}
    each = " UNION ALL ".join(
        f"SELECT {quote_text(name)} AS name, row_count AS rows, {quote_name(f'null_count.{name}')} AS nulls, "  # noqa: S608
        f"{quote_name(f'min.{name}')} AS low, {quote_name(f'max.{name}')} AS high, "
        f"greatest(length(low), length(high)) < {MAX_BOUND_CHARS} AS is_exact, NULL AS distinct_count FROM listed"
        for name in names
    )
    con.execute(f"CREATE TEMP TABLE log_facts AS {each}")
    found = _sum_facts(con, snapshot, "log_facts")
    return {name: each for name, each in found.items() if each.nulls is not None}


def _read_footers(con: "DuckDBPyConnection", picked: SnapshotFiles, names: Collection[str]) -> dict[str, _Facts]:
    """Return what the footers of files say of columns."""
    uris = ", ".join(map(quote_text, picked.files.uris))
    con.execute(
        f"CREATE TEMP TABLE footers AS SELECT *, row_group_num_rows AS rows FROM parquet_metadata([{uris}])"  # noqa: S608
    )
    con.execute(
        "CREATE TEMP TABLE footer_facts AS SELECT path_in_schema AS name, rows, stats_null_count AS nulls, "
        "stats_min_value AS low, stats_max_value AS high, "
        "type <> 'BYTE_ARRAY' OR coalesce(min_is_exact AND max_is_exact, false) AS is_exact, "
        "stats_distinct_count AS distinct_count FROM footers"
    )
    # A file without a column has nulls there; a column of columns has other names in there, and no statistics.
    count = "SELECT sum(rows) FROM (SELECT DISTINCT file_name, row_group_id, rows FROM footers)"
    (rows,) = con.execute(count).fetchone() or (0,)
    nested = {name for (name,) in con.execute("SELECT DISTINCT split_part(name, ', ', 1) FROM footer_facts").fetchall()}
    found = _sum_facts(con, picked, "footer_facts")
    for name in names:
        if name not in found and name not in nested:
            found[name] = _Facts(0, 0, is_ranged=True)
        if name in found:
            facts = found[name]
            facts.nulls = None if facts.nulls is None else facts.nulls + rows - facts.rows
            facts.rows = rows
    return {name: found[name] for name in names if name in found}


def _sum_facts(con: "DuckDBPyConnection", snapshot: SnapshotFiles, table: str) -> dict[str, _Facts]:
    """Return the facts of each column from those of files or row groups; texts become values of its type."""
    types = checked_types(snapshot)
    found: dict[str, _Facts] = {}
    for sql_type in dict.fromkeys(types.values()):
        names = ", ".join(quote_text(name) for name, each in types.items() if each == sql_type)
        low, high = f"TRY_CAST(low AS {sql_type})", f"TRY_CAST(high AS {sql_type})"
        is_exact = "is_exact" if sql_type == "VARCHAR" else "true"
        rows = con.execute(
            "SELECT name, sum(rows), CASE WHEN count(rows) = count(*) AND count(nulls) = count(*) THEN sum(nulls) END, "  # noqa: S608
            f"min({low}), max({high}), coalesce(bool_and(nulls = rows OR ({low} IS NOT NULL AND {high} IS NOT NULL)), "
            f"false), coalesce(bool_and({is_exact}) FILTER (low IS NOT NULL), true), max(distinct_count), count(*) "
            f"FROM {table} WHERE name IN ({names}) GROUP BY name"
        ).fetchall()
        for name, count, nulls, least, greatest, is_ranged, exact, distinct, parts in rows:
            known: Known = "unknown" if distinct is None else "exact" if parts == 1 else "bound"
            found[name] = _Facts(count or 0, nulls, least, greatest, is_ranged, exact, distinct, known)
    return found


def _count_distinct(con: "DuckDBPyConnection", picked: SnapshotFiles, facts: Mapping[str, _Facts]) -> None:
    """Add the number of values of each column, counted in the rows of all files.

    Few at a time, of a table that has no others: what DuckDB does for them grows with the square of their number.
    """
    names = [name for name in checked_types(picked) if name in facts]
    for start in range(0, len(names), DISTINCT_AT_ONCE):
        some = {name: picked.schema[name] for name in names[start : start + DISTINCT_AT_ONCE]}
        asked = ", ".join(f"count(DISTINCT {quote_name(name)})" for name in some)
        rows = select_from(replace(picked, schema=some), columns=list(some))
        counts = con.execute(f"SELECT {asked} FROM ({rows})").fetchone() or ()  # noqa: S608
        for name, count in zip(some, counts, strict=True):
            facts[name].distinct, facts[name].distinct_known = count, "exact"

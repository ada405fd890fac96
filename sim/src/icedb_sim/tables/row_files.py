"""The data path on a store in memory: data files are lines of JSON, so that tests can count every row.

Implements :class:`~icedb_log.jobs.BatchWriter` and :class:`~icedb_log.jobs.GroupMerger` with the same promises as
the real one: fresh names, rejected batches with a reason, counts, and no look at the log. Types are the JSON
types of the values, times are ISO texts; a partition is the identity of its column, or the year, month, day or hour
of a time. Bad rows are kept as they are, not compressed. A last line that begins with ``#`` is the footer
(:mod:`icedb_sim.tables.row_footers`), written only when it is asked for: many tests are about sizes of files.
Changes of rows are written in the tiny language of :mod:`icedb_sim.tables.row_files`.
"""

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from icedb_log.clock import Clock
from icedb_log.content import hash_content
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.quarantine import payload_key
from icedb_log.ingest.staging import read_staged
from icedb_log.jobs import (
    BadRows,
    CountJob,
    FeedJob,
    FlushJob,
    FlushOutput,
    MergedGroup,
    MergeGroup,
    MergeJob,
    RejectedBatch,
    RowChange,
    SizeClass,
    StagedBatch,
)
from icedb_log.keys import TablePaths
from icedb_log.log.fold import Snapshot
from icedb_log.log.widening import fixed_columns, is_widening
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import encode_partition_value, read_partition_values
from icedb_log.table.table_config import PartitionField, TableConfig

_TERM: Final = re.compile(
    r"(?P<column>\w+)\s*(?:(?P<op><=|>=|!=|=|<|>)\s*(?P<value>-?[0-9]+(?:\.[0-9]+)?|true|false|'[^']*')"
    r"|is\s+(?P<negated>not\s+)?null)"
)
_QUERY: Final = re.compile(
    r"select\s+(?P<distinct>distinct\s+)?\*\s+from\s+(?P<view>\w+)(?:\s+where\s+(?P<where>.+))?", re.DOTALL
)
_AND: Final = re.compile(r"\s+and\s+")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_VIEWS: Final = {"rewrite": "_rows", "merge_query": "source_files"}


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison; ``operator`` may also be ``is null`` or ``is not null``."""

    column: str
    operator: str
    value: Any

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true for a row. Raises InvalidRequest when a text is compared with a number."""
        value = row.get(self.column)
        if self.operator in ("is null", "is not null"):
            return (value is None) == (self.operator == "is null")
        if value is None:
            return False
        if isinstance(value, str) != isinstance(self.value, str):
            raise InvalidRequest(
                f"column {self.column!r} holds {value!r}, which cannot be compared with {self.value!r}"
            )
        return _OPERATORS[self.operator](value, self.value)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons that must all be true."""

    terms: tuple[Term, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in it."""
        return tuple(term.column for term in self.terms)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true for a row."""
        return all(term.holds(row) for term in self.terms)


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A query that keeps some of the rows."""

    is_distinct: bool
    condition: Condition

    def run(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that are left."""
        kept = [row for row in rows if self.condition.holds(row)]
        if not self.is_distinct:
            return kept
        return list({orjson.dumps(row, option=orjson.OPT_SORT_KEYS): row for row in kept}.values())


def parse_condition(sql: str) -> Condition:
    """Parse a condition. Raises InvalidRequest."""
    return Condition(() if sql.strip() == "true" else tuple(_parse_term(text) for text in _AND.split(sql.strip())))


def parse_row_query(change: RowChange) -> RowQuery:
    """Parse the query of a rewrite or a ``merge_query``. Raises InvalidRequest."""
    match = _QUERY.fullmatch(change.sql.strip())
    view = _VIEWS[change.kind]
    if match is None or match["view"] != view:
        raise InvalidRequest(f"query {change.sql[:200]!r}: write select [distinct] * from {view} [where ...]")
    return RowQuery(match["distinct"] is not None, parse_condition(match["where"] or "true"))


def _parse_term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"condition {text[:200]!r} is not understood: write column = literal, joined with and")
    if match["op"] is None:
        return Term(match["column"], "is not null" if match["negated"] else "is null", None)
    literal = match["value"]
    value = literal[1:-1] if literal.startswith("'") else orjson.loads(literal)
    return Term(match["column"], match["op"], value)


Row = Mapping[str, Any]

EXACT_MAX: Final = 2**53
_TIME_TYPES: Final = ("DATE", "TIMESTAMP")
_TIME_LENGTHS: Final = {"year": 4, "month": 7, "day": 10, "hour": 13}
_TYPES: Final = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


class _Refused(Exception):
    """A batch that cannot be taken, with the reason."""


@dataclass(frozen=True, slots=True)
class RowFileWriter:
    """Writes the rows of staged batches into one data file per partition."""

    store: ObjectStore
    clock: Clock
    has_footers: bool = False

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Run a flush job."""
        schema = {**job.schema, **job.config.declared}
        rows: dict[str, list[Row]] = defaultdict(list)
        accepted: list[StagedBatch] = []
        rejected: list[RejectedBatch] = []
        missing: list[StagedBatch] = []
        bad_rows: list[BadRows] = []
        left_out: list[StagedBatch] = []
        contents: dict[str, str] = {}
        for batch in job.batches:
            try:
                body = read_staged(self.store, batch)
            except NotFound:
                missing.append(batch)
                continue
            if job.sizes is not None and is_large(body, job.sizes) != (job.sizes.takes == "large"):
                left_out.append(batch)
                continue
            read = _read_batch(body, schema, config=job.config, may_widen=partial(self._may_widen, job))
            if read.bad_lines and job.config.on_bad_rows == "quarantine_batch":
                rejected.append(RejectedBatch(batch, read.reason))
                continue
            if read.bad_lines:
                payload = b"\n".join(read.bad_lines)
                key = payload_key(job.paths, batch.batch_id, payload, "ndjson.zst", what="rows")
                self.store.put(key, payload)
                bad_rows.append(BadRows(batch, key, len(read.bad_lines), read.reason))
            schema = read.schema
            accepted.append(batch)
            contents[batch.batch_id] = hash_content(body, batch.format)
            for partition, row in read.placed:
                rows[partition].append(row)
        files = write_partitions(self.store, job, rows, clock=self.clock, has_footers=self.has_footers)
        row_count = sum(len(part) for part in rows.values())
        return FlushOutput(
            files=files,
            schema=schema,
            accepted=tuple(accepted),
            rejected=tuple(rejected),
            missing=tuple(missing),
            row_count=row_count,
            bad_rows=tuple(bad_rows),
            left_out=tuple(left_out),
            contents=contents,
        )

    def _may_widen(self, job: FlushJob, column: str) -> bool:
        """Whether no live value changes (S2): as the log says, or as the live data files show where it says nothing."""
        is_inexact = False if job.inexact is None else job.inexact.get(column)
        if is_inexact is None or column in job.config.declared:
            return True
        live = () if is_inexact else job.read_live()
        rows = (row for marker in live for row in read_rows(self.store, marker.path))
        return not is_inexact and column not in find_inexact(rows)


def find_inexact(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the columns with an integer that a DOUBLE does not hold exactly."""
    found = {
        column
        for row in rows
        for column, value in row.items()
        if type(value) is int and not -EXACT_MAX <= value <= EXACT_MAX
    }
    return tuple(sorted(found))


def is_large(body: bytes, sizes: SizeClass) -> bool:
    """Return whether a batch is above a bound."""
    return len(body) > sizes.decoded_bytes or body.count(b"\n") + 1 > sizes.row_count


@dataclass(frozen=True, slots=True)
class RowFileMerger:
    """Merges each group into one data file, or none if no row is left."""

    store: ObjectStore
    clock: Clock
    has_footers: bool = False

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Run a merge job. Raises NotFound (an input is gone), InvalidRequest (the change is not understood)."""
        return tuple(self._merge(job, group) for group in job.groups)

    def _merge(self, job: MergeJob, group: MergeGroup) -> MergedGroup:
        read = [row for marker in group.inputs for row in read_rows(self.store, marker.path)]
        rows, rows_removed = _change_rows(read, job.change)
        if job.change is not None and not rows:
            return MergedGroup(group, (), len(read), rows_removed)
        kind = "merge" if job.change is None or job.change.kind == "merge_query" else job.change.kind
        footer = make_row_footer(job, group.partition, kind=kind, inputs=[marker.path for marker in group.inputs])
        output = write_rows(
            TableStore(self.store, job.paths),
            partition=group.partition,
            rows=rows,
            config=job.config,
            clock=self.clock,
            time_ms=job.time_ms,
            footer=footer if self.has_footers else None,
        )
        return MergedGroup(group, (output,), len(read), rows_removed)


class RowFileChanger(RowFileMerger):
    """Merges and changes rows."""

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check that a change is understood and names columns of the table."""
        condition = parse_condition(change.sql) if change.kind == "delete" else parse_row_query(change).condition
        known = {**schema, **config.declared}
        unknown = [column for column in condition.columns if column not in known]
        if unknown:
            raise InvalidRequest(f"table {config.name}: no column {unknown[0]!r}; it has {', '.join(sorted(known))}")

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return the files whose partition may hold rows that a deletion removes."""
        condition = parse_condition(change.sql)
        sources = {field.name: field.column for field in config.partition if field.transform == "identity"}
        return tuple(
            marker for marker in files if _may_hold(condition, paths.partition_of(marker.path), sources=sources)
        )

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count the rows that a deletion removes. Raises NotFound when a file is gone."""
        condition = parse_condition(job.change.sql)
        return tuple(
            sum(1 for row in read_rows(self.store, marker.path) if condition.holds(row)) for marker in job.files
        )


def _change_rows(rows: list[dict[str, Any]], change: RowChange | None) -> tuple[list[dict[str, Any]], int | None]:
    """Return the rows that are left, and how many a deletion removed."""
    if change is None:
        return rows, 0
    if change.kind == "delete":
        condition = parse_condition(change.sql)
        return [row for row in rows if not condition.holds(row)], sum(1 for row in rows if condition.holds(row))
    return parse_row_query(change).run(rows), None


def _may_hold(condition: Condition, partition: str, *, sources: Mapping[str, str]) -> bool:
    values = {sources[name]: value for name, value in read_partition_values(partition).items() if name in sources}
    return all(
        term.operator != "=" or term.column not in values or str(term.value) == values[term.column]
        for term in condition.terms
    )


def write_partitions(
    store: ObjectStore,
    job: FlushJob | FeedJob,
    rows: Mapping[str, Sequence[Row]],
    *,
    clock: Clock,
    has_footers: bool,
) -> tuple[FileMarker, ...]:
    """Write one data file for each partition of a flush or a feed, and return their markers."""
    return tuple(
        write_rows(
            TableStore(store, job.paths),
            partition=partition,
            rows=part,
            config=job.config,
            clock=clock,
            time_ms=job.time_ms,
            footer=make_row_footer(job, partition, kind="flush") if has_footers else None,
        )
        for partition, part in sorted(rows.items())
    )


def write_rows(
    table: TableStore,
    *,
    partition: str,
    rows: Iterable[Row],
    config: TableConfig,
    clock: Clock,
    time_ms: int,
    footer: Mapping[str, str] | None = None,
) -> FileMarker:
    """Write one data file under a fresh name, sorted, and return its marker."""
    lines = sorted(rows, key=lambda row: [(row.get(column) is None, str(row.get(column))) for column in config.sort])
    body = b"\n".join(orjson.dumps(row) for row in lines)
    if footer is not None:
        body += b"\n#" + orjson.dumps(dict(footer))
    key = table.paths.data_key(partition=partition, file_id=clock.new_id())
    table.store.put(key, body)
    return FileMarker(
        key,
        len(body),
        time_ms,
        row_count=len(lines),
        inexact=find_inexact(lines),
        promoted_count=len(config.promoted),
    )


def read_rows(store: ObjectStore, key: str) -> list[dict[str, Any]]:
    """Read one data file. Raises NotFound."""
    return [orjson.loads(line) for line in store.get(key).body.split(b"\n") if line and not line.startswith(b"#")]


def make_row_footer(
    job: FlushJob | MergeJob | FeedJob, partition: str, *, kind: str, inputs: Sequence[str] = ()
) -> dict[str, str]:
    """Return what a footer says of a file's origin, as real data files have it."""
    footer = {
        "icedb.format": "1",
        "icedb.table": job.paths.name,
        "icedb.partition": partition,
        "icedb.commit": job.commit_id,
        "icedb.kind": kind,
    }
    return footer if kind == "flush" else {**footer, "icedb.inputs": orjson.dumps(list(inputs)).decode()}


def read_live_rows(store: ObjectStore, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Read all rows of a snapshot. Raises NotFound when a live data file is gone."""
    return [row for marker in snapshot.live for row in read_rows(store, marker.path)]


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return the body of a batch in the staging format ``ndjson``."""
    return b"\n".join(orjson.dumps(row) for row in rows)


@dataclass(frozen=True, slots=True)
class _ReadBatch:
    """What a batch holds: rows with their partitions, the schema with them, and lines that do not fit."""

    placed: list[tuple[str, Row]]
    schema: dict[str, str]
    bad_lines: list[bytes]
    reason: str


def _read_batch(
    body: bytes, schema: dict[str, str], *, config: TableConfig, may_widen: Callable[[str], bool]
) -> _ReadBatch:
    placed: list[tuple[str, Row]] = []
    bad_lines: list[bytes] = []
    reason = ""
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line:
            continue
        try:
            row = _parse_row(line)
            grown = _grow_schema(schema, row, config=config, may_widen=may_widen)
            placed.append((_partition_of(config, row), row))
        except _Refused as error:
            reason = reason or f"line {number}: {error}"
            bad_lines.append(line)
        else:
            schema = grown
    return _ReadBatch(placed, schema, bad_lines, reason)


def row_type(value: object) -> str:
    """Return the SQL type of a value of a row."""
    return _TYPES.get(type(value), "VARCHAR")


def _parse_row(line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _Refused("not JSON") from error
    if not isinstance(row, dict):
        raise _Refused("not a JSON object")
    return row


def _grow_schema(
    schema: Mapping[str, str], row: Row, *, config: TableConfig, may_widen: Callable[[str], bool]
) -> dict[str, str]:
    grown = dict(schema)
    for column, value in row.items():
        if value is None:
            continue
        sql_type = row_type(value)
        known = grown.get(column, sql_type)
        if sql_type == "VARCHAR" and known in _TIME_TYPES:
            continue
        if known == sql_type or is_widening(sql_type, known):
            grown[column] = known
        elif _is_widened(column, known, sql_type, config) and may_widen(column):
            grown[column] = sql_type
        else:
            raise _Refused(f"column {column} is {known} in the table and {sql_type} in the batch")
    return grown


def _is_widened(column: str, narrow: str, wide: str, config: TableConfig) -> bool:
    return config.evolution == "widen" and is_widening(narrow, wide) and column not in fixed_columns(config)


def _partition_of(config: TableConfig, row: Row) -> str:
    missing = [field.column for field in config.partition if row.get(field.column) is None]
    if missing:
        raise _Refused(f"partition column {missing[0]} is missing")
    return "/".join(
        f"{field.name}={encode_partition_value(_partition_value(field, row))}" for field in config.partition
    )


def _partition_value(field: PartitionField, row: Row) -> str:
    value = str(row[field.column])
    length = _TIME_LENGTHS.get(field.transform)
    return value if length is None else value[:length].replace("T", "-")

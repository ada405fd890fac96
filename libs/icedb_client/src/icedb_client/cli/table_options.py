"""The options of ``icedb table create`` and ``icedb table alter``, and how they become a configuration."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig
from icedb_log.units import HOUR_MS, MIB, MINUTE_MS, SECOND_MS

from icedb_client.cli.parsing import parse_columns, parse_declared, parse_duration, parse_ranges

QUERY_FROM_FILE: Final = "@"
MAX_QUERY_BYTES: Final = 1024 * 1024
RETENTION_OFF: Final = "off"
MIN_DATA_GRACE_MS: Final = MINUTE_MS
"""`--data-grace` takes no less: a query that has begun reads files that die meanwhile."""
MIN_LOG_GRACE_MS: Final = 30 * SECOND_MS
"""`--log-grace` takes no less: a reader's refresh has half of it (R2), a producer's retries three quarters (I3)."""
MIN_ORPHAN_AGE_MS: Final = HOUR_MS
"""`--orphan-age` takes no less: a merge, an import or a deletion has to be committed within half of it (W3)."""
QUERY_OFF: Final = "off"


class EvolutionChoice(StrEnum):
    """What `--evolution` takes."""

    strict = "strict"
    add_columns = "add_columns"
    widen = "widen"


class BadRowsChoice(StrEnum):
    """What `--on-bad-rows` takes."""

    quarantine_batch = "quarantine_batch"
    quarantine_rows = "quarantine_rows"


Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME:TYPE",
        help="Declare a column's type, e.g. price:DOUBLE; ts:epoch_ms (epoch_s, epoch_us) is a time that is a BIGINT, "
        "ts:TIMESTAMP(epoch_s) one whose numbers are seconds. Others are found in the data. Repeat.",
    ),
]
Plausible = Annotated[
    list[str] | None,
    typer.Option(
        "--plausible",
        metavar="NAME:FROM..TO",
        help="Times outside are bad rows, e.g. ts:2020..2030-06-30; ts:off: none are. Sources of partitions of a new "
        "table have 1990..2100. Repeat.",
    ),
]
Evolution = Annotated[
    EvolutionChoice | None,
    typer.Option(
        "--evolution",
        metavar="POLICY",
        help="strict: only declared columns; add_columns: new ones appear; widen: BIGINT may also become DOUBLE, and "
        "DATE TIMESTAMP, where no value loses anything.",
    ),
]
OnBadRows = Annotated[
    BadRowsChoice | None,
    typer.Option(
        "--on-bad-rows",
        metavar="POLICY",
        help="What waits in quarantine: quarantine_batch: the whole batch; quarantine_rows: only its bad rows.",
    ),
]
InsertQuery = Annotated[
    str | None,
    typer.Option(
        "--insert-query",
        metavar="SQL",
        help="Spark SQL over _rows that every flush runs, or @FILE. An ingest worker checks it now.",
    ),
]
MergeQuery = Annotated[
    str | None,
    typer.Option(
        "--merge-query",
        metavar="SQL",
        help="Spark SQL over source_files that every merge runs on the rows it merges, or @FILE; 'off' for none. "
        "An ingest worker checks it now.",
    ),
]
ViewSource = Annotated[
    str | None,
    typer.Option("--from", metavar="TABLE", help="Make it a view: each commit to this table feeds it, with --query."),
]
ViewQuery = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="SQL",
        help="Of a view: Spark SQL over _rows, the rows of those commits, or @FILE. An ingest worker checks it now.",
    ),
]
Source = Annotated[
    list[str] | None,
    typer.Option(
        "--source", metavar="NAME:TYPE", help="A column of _rows with its type, e.g. payload:VARCHAR. Repeat."
    ),
]
TargetFileMb = Annotated[
    float | None,
    typer.Option("--target-file-mb", metavar="MIB", help="Data files of this size (MiB) are not merged any more."),
]
MergeFanIn = Annotated[
    int | None,
    typer.Option("--merge-fan-in", metavar="N", help="Files of similar size that are merged at once, from 2."),
]
DataGrace = Annotated[
    str | None,
    typer.Option(
        "--data-grace", metavar="TIME", help="How long a dead data file stays: longer than the longest query."
    ),
]
LogGrace = Annotated[
    str | None,
    typer.Option(
        "--log-grace", metavar="TIME", help="How long a dead log file stays: bounds time travel and retries of a batch."
    ),
]
OrphanAge = Annotated[
    str | None,
    typer.Option("--orphan-age", metavar="TIME", help="A data file that no log file names is deleted after this."),
]
KeepVersions = Annotated[
    int | None,
    typer.Option(
        "--keep-versions",
        metavar="N",
        help="States after the newest N commits stay readable, however old they are; 0 to 200.",
    ),
]
AuditRetention = Annotated[
    str | None,
    typer.Option("--audit-retention", metavar="TIME", help="How long it is kept what the janitor deleted, and why."),
]
MaxPartitions = Annotated[
    int | None,
    typer.Option(
        "--max-partitions-per-flush", metavar="N", help="Partitions of one commit; further batches come with the next."
    ),
]
LogFilesSlow = Annotated[
    int | None, typer.Option("--log-files-slow", metavar="N", help="From so many log files on flushes come less often.")
]
LogFilesStop = Annotated[
    int | None, typer.Option("--log-files-stop", metavar="N", help="From so many log files on batches are refused.")
]
BacklogFilesSlow = Annotated[
    int | None,
    typer.Option(
        "--backlog-files-slow", metavar="N", help="From so many data files to merge on flushes come less often."
    ),
]
BacklogFilesStop = Annotated[
    int | None,
    typer.Option("--backlog-files-stop", metavar="N", help="From so many data files to merge on batches are refused."),
]
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="TIME",
        help="How long a time partition is kept after its end, e.g. 90d; off: for ever. Rows beyond it are removed.",
    ),
]
RetentionField = Annotated[
    str | None,
    typer.Option(
        "--retention-field", metavar="FIELD", help="The time partition that --retention goes by; the first by default."
    ),
]
QuarantineRetention = Annotated[
    str | None,
    typer.Option(
        "--quarantine-retention",
        metavar="TIME",
        help="How long refused batches and bad rows are kept in quarantine, e.g. 90d; at least 1h; off: for ever.",
    ),
]
CheckTimeout = Annotated[
    str,
    typer.Option("--check-timeout", metavar="TIME", help="How long to wait for the worker that checks queries."),
]


def read_fields(
    *,
    column: list[str] | None,
    plausible: list[str] | None,
    source: list[str] | None,
    insert_query: str | None,
    target_file_mb: float | None,
    data_grace: str | None,
    log_grace: str | None,
    orphan_age: str | None,
    audit_retention: str | None,
    **plain: int | StrEnum | None,
) -> dict[str, Any]:
    """Return the fields of a configuration that options name; what was not given is left out.

    Args:
        column: Texts of ``--column``.
        plausible: Texts of ``--plausible``.
        source: Texts of ``--source``.
        insert_query: Text of ``--insert-query``.
        target_file_mb: MiB.
        data_grace: A duration.
        log_grace: A duration.
        orphan_age: A duration.
        audit_retention: A duration.
        plain: Fields that are given as they are.

    Raises:
        InvalidRequest: A text is not understood, or a time is below its floor; names the option.
    """
    durations = {
        "data_grace_ms": ("--data-grace", data_grace, MIN_DATA_GRACE_MS),
        "log_grace_ms": ("--log-grace", log_grace, MIN_LOG_GRACE_MS),
        "orphan_age_ms": ("--orphan-age", orphan_age, MIN_ORPHAN_AGE_MS),
        "audit_retention_ms": ("--audit-retention", audit_retention, 0),
    }
    declared, times = parse_declared(column or (), option="--column")
    for name, ends in parse_ranges(plausible or (), option="--plausible").items():
        times[name] = {**times.get(name, {}), **ends}
    fields: dict[str, Any] = {
        "declared": declared or None,
        "times": times or None,
        "source": parse_columns(source, option="--source") if source else None,
        "insert_query": None if insert_query is None else read_query(insert_query),
        "target_file_bytes": None if target_file_mb is None else int(target_file_mb * MIB),
        **{name: str(value) if isinstance(value, StrEnum) else value for name, value in plain.items()},
        **{
            name: None if text is None else parse_duration(text, option=option, floor_ms=floor_ms)
            for name, (option, text, floor_ms) in durations.items()
        },
    }
    return {name: value for name, value in fields.items() if value is not None}


def read_view(view_source: str | None, view_query: str | None) -> dict[str, Any]:
    """Return the fields of ``--from`` and ``--query``; none if neither is given.

    Raises:
        InvalidRequest: Only one of them, or the query cannot be read.
    """
    if view_source is None and view_query is None:
        return {}
    if view_source is None or view_query is None:
        raise InvalidRequest("a view needs both: --from TABLE, which feeds it, and --query SQL over _rows")
    return {"view_of": view_source, "view_query": read_query(view_query, option="--query")}


def read_merge_query(merge_query: str | None) -> dict[str, Any]:
    """Return the field of ``--merge-query``; none if it was not given. Raises InvalidRequest."""
    if merge_query is None:
        return {}
    is_off = merge_query.strip().lower() == QUERY_OFF
    return {"merge_query": None if is_off else read_query(merge_query, option="--merge-query")}


def read_retention(retention: str | None, retention_field: str | None) -> dict[str, Any]:
    """Return the fields of ``--retention`` and ``--retention-field``; what was not given is left out.

    Raises:
        InvalidRequest: Not a duration.
    """
    fields: dict[str, Any] = {}
    if retention is not None:
        is_off = retention.strip() == RETENTION_OFF
        fields["retention_ms"] = None if is_off else parse_duration(retention, option="--retention")
    if retention_field is not None:
        fields["retention_field"] = retention_field
    return fields


def read_quarantine_retention(text: str | None) -> dict[str, Any]:
    """Return the field of ``--quarantine-retention``; none if it was not given. Raises InvalidRequest."""
    if text is None:
        return {}
    is_off = text.strip() == RETENTION_OFF
    return {"quarantine_retention_ms": None if is_off else parse_duration(text, option="--quarantine-retention")}


def read_query(text: str, *, option: str = "--insert-query") -> str:
    """Return the SQL of an option, or of the file that it names (``@FILE``). Raises InvalidRequest."""
    if not text.startswith(QUERY_FROM_FILE):
        query = text
    else:
        path = Path(text.removeprefix(QUERY_FROM_FILE))
        try:
            body = path.read_bytes()
            query = body.decode()
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{option} {str(path)[:200]!r} cannot be read: {error}") from error
    if not query.strip() or len(query.encode()) > MAX_QUERY_BYTES:
        raise InvalidRequest(f"{option}: 1 to {MAX_QUERY_BYTES} bytes of SQL, not {len(query.encode())}")
    return query.strip()


def describe_declared(config: TableConfig, column: str) -> str:
    """Return what is declared of a column, as ``--column`` and ``--plausible`` take it."""
    declared, time = config.declared[column], config.times.get(column)
    if time is None:
        return declared
    unit = time.unit if declared == "BIGINT" else f"{declared}({time.unit})"
    text = declared if time.unit is None else str(unit)
    return text if time.from_ms is None else f"{text}, {time.describe_range()}"

"""``icedb table``: create, alter, list, show; ``icedb view``. The trash is :mod:`icedb.cli.trash`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from icedb_client.requests import TableInfo
from icedb_log.errors import HaltError, InvalidRequest, NotFound, Unavailable
from icedb_log.feed.views import (
    ViewLag,
    create_view,
    detach_view,
    list_view_lags,
    read_last_refusal,
    register_view,
    require_no_cycle,
    source_of,
)
from icedb_log.names import INGEST_CHECK_QUERY
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.adoption import require_fit
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_changes import alter_table_config, plan_change
from icedb_log.table.table_config import NEW_TABLE_POLICIES, QUERIES, PartitionField, TableConfig, with_plausible_times
from icedb_log.units import parse_duration
from rich.markup import escape

from icedb.cli import trash
from icedb.cli.output import (
    format_bytes,
    format_count,
    format_span,
    format_time,
    out,
    print_error,
    print_line,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.runner import HALTED, Run, TableName, argument, command, describe_no_tables, flag, is_served, option
from icedb.cli.table_settings import ALTER_FIELDS, CREATE_FIELDS, describe_declared, read_settings, with_settings

app = typer.Typer(no_args_is_help=True, help="Create, change and look at tables.")
view_app = typer.Typer(no_args_is_help=True, help="Look at a table's views; stop and start feeding them.")

NO_COLUMNS: Final = "no columns yet: they come with the first events"

CheckTimeout = Annotated[
    str,
    typer.Option("--check-timeout", metavar="TIME", help="How long to wait for the worker that checks queries."),
]


@app.command("create")
@with_settings(CREATE_FIELDS, shows_defaults=True)
@command(asks=True)
def create(
    run: Run,
    *,
    name: str = argument("1 to 63 of a-z, 0-9 and _, beginning with a letter."),
    partition: list[str] | None = option(
        "--partition",
        "One level of partitions: column, d=day(ts), year|month|day|hour(column), "
        "u=bucket[16](user_id), p=truncate[2](country). Repeat for more levels.",
        metavar="FIELD",
    ),
    sort: list[str] | None = option("--sort", "Sort columns of data files, e.g. event,ts.", metavar="COLUMNS"),
    settings: Mapping[str, Any],
    if_not_exists: bool = flag("--if-not-exists", "Succeed if the table is there with the same configuration."),
    check_timeout: CheckTimeout = "2m",
) -> None:
    """Create a table. Its partitions and sort order are fixed from then on.

    Example: icedb table create events --partition 'd=day(ts)' --sort event,ts
    """
    fields = read_settings(settings)
    if ("view_of" in fields) != ("view_query" in fields):
        raise InvalidRequest("a view needs both: --from TABLE, which feeds it, and --query SQL over _rows")
    given = TableConfig.create(
        name=name,
        partition=tuple(PartitionField.parse(text) for text in partition or ()),
        sort=split_names(sort or ()),
        **{**NEW_TABLE_POLICIES, **fields},
    )
    config = with_plausible_times(given, said=fields.get("times"))
    if config.insert_query is not None and not config.source:
        raise InvalidRequest(
            "--insert-query needs --source NAME:TYPE for each column of _rows that it uses, so that it can be checked"
        )
    check_timeout_ms = parse_duration(check_timeout, option="--check-timeout")
    place = run.place(name)
    place.store.probe()
    if config.view_of is not None:
        require_no_cycle(place, config)
    if any(getattr(config, query) is not None for query in QUERIES):
        found = _check_queries(run, config, timeout_ms=check_timeout_ms)
        config = config.model_copy(update={"declared": {**found, **config.declared}})
    is_new = True
    try:
        _create(run, place, config)
    except InvalidRequest as error:
        if not if_not_exists:
            raise
        is_new = False
        try:
            there = read_table_config(place)
        except NotFound:
            raise error from None  # it says when the name is free
        # Policies that nobody asked for are not compared: a table that is there keeps those that it was made with.
        kept = {name: getattr(there, name) for name in NEW_TABLE_POLICIES if name not in fields}
        kept["times"] = there.times if there.times == given.times else config.times
        kept |= {"incarnation": there.incarnation, "undropped": there.undropped}
        if there != config.model_copy(update=kept):
            raise InvalidRequest(
                f"table {name!r} exists with another configuration; see `icedb table show {name}`"
            ) from None
        if config.view_of is not None:  # its creation may have stopped halfway
            register_view(source_of(place, config), name, clock=run.clock)
    run.answer(
        {"table": name, "created": is_new, "config": config.model_dump(mode="json")},
        lambda: out.print(f"table [bold]{name}[/] {'created' if is_new else 'is there already'}"),
    )


def _create(run: Run, place: TableStore, config: TableConfig) -> None:
    """Create a table or a view; over a log that is there already, only if the configuration fits it.

    A log that cannot be read is no obstacle: what repairs it needs the configuration.

    Raises:
        InvalidRequest: The table exists, or its configuration does not fit the log.
        NotFound: A view's source is not there.
        Unavailable: The store did not answer.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
    """
    if not place.store.list_page(place.paths.config_key, limit=1).objects:
        try:
            require_fit(place, config, clock=run.clock, footers=ParquetFooterReader(place.store))
        except HaltError as error:
            print_error(f"the log of table {config.name} cannot be read, see `icedb fsck {config.name}`: {error}")
    if config.view_of is None:
        create_table(place, config)
    else:
        create_view(place, config, clock=run.clock)


@app.command("alter")
@with_settings(ALTER_FIELDS, shows_defaults=False)
@command(asks=True)
def alter(
    run: Run,
    *,
    name: TableName,
    settings: Mapping[str, Any],
    undeclare: list[str] | None = option(
        "--undeclare", "Take back a column's declaration; its data stay. Repeat.", metavar="NAME"
    ),
    check_timeout: CheckTimeout = "2m",
) -> None:
    """Change what may change of a table; grace periods only grow. Partitions, sort order, insert query are fixed.

    Queries that were written for Spark's SQL, by an earlier release, are given anew, all of a table in one command.

    Example: icedb table alter events --evolution widen --column price:DOUBLE
    """
    change = read_settings(settings)
    taken_back = dict.fromkeys(split_names(undeclare or ()))
    both = sorted(taken_back.keys() & change.get("declared", {}).keys())
    if both:
        raise InvalidRequest(f"column {both[0]!r} is in --column and in --undeclare: give one of them")
    if taken_back:
        change["declared"] = {**change.get("declared", {}), **taken_back}
    if not change:
        raise InvalidRequest("nothing to change: give at least one option, see `icedb table alter --help`")
    before = run.client.table_config(name)
    if any(change.get(query) is not None for query in QUERIES):
        others: dict[str, Any] = {"insert_query": None, "source": {}, "view_of": None, "view_query": None}
        is_merge_alone = change.keys().isdisjoint(("insert_query", "view_query"))
        _check_queries(
            run,
            plan_change(before, change).model_copy(update=others if is_merge_alone else {}),
            schema=run.client.snapshot(name).schema,
            timeout_ms=parse_duration(check_timeout, option="--check-timeout"),
        )
    config = alter_table_config(run.place(name), change, clock=run.clock)

    def show() -> None:
        if config == before:
            out.print(f"table [bold]{name}[/] is so already")
            return
        out.print(f"table [bold]{name}[/] changed; workers go by it from their next run on")
        if config.retention_ms != before.retention_ms and config.retention_ms is not None:
            print_note(f"`icedb partitions expire {name} --dry-run` shows what retention will remove")

    run.answer({"table": name, "changed": config != before, "config": config.model_dump(mode="json")}, show)


@app.command("list")
@command()
def list_tables(run: Run) -> None:
    """List the tables of the warehouse. One that cannot be read hides none of the others.

    Example: icedb table list --json
    """
    found: list[TableConfig | TableInfo] = []
    problems: dict[str, str] = {}
    client, has_store = run.client, not is_served(run.client)
    for name in client.warehouse.list_tables() if has_store else client.tables():
        try:
            found.append(client.table_config(name) if has_store else client.table(name))
        except HaltError as error:
            problems[name] = str(error)
        except NotFound:
            continue  # dropped since the names were listed

    def show() -> None:
        if found:
            rows = ((table.name, _partitions(table) or None, _sort(table) or None) for table in found)
            print_table(("table", "partitions", "sorted by"), rows)
        elif not problems:
            print_note(describe_no_tables(run.client) if has_store else "no tables that these credentials may read")

    run.answer({"tables": [_to_json(table) for table in found], "unreadable": problems}, show)
    for problem in problems.values():
        print_error(problem)
    if problems:
        raise typer.Exit(HALTED)


@app.command("show")
@command()
def show_table(run: Run, *, name: TableName) -> None:
    """Show a table's configuration and columns.

    Example: icedb table show events
    """
    if is_served(run.client):
        table = run.client.table(name)
        run.answer(_to_json(table), lambda: _show_served(table))
        return
    config = run.client.table_config(name)
    schema = dict(run.client.snapshot(name).schema)
    run.answer({**_to_json(config), "schema": schema}, lambda: _show(config, schema))


def _show_served(table: TableInfo) -> None:
    print_pairs(
        {
            "table": table.name,
            "partitions": _partitions(table) or "-",
            "sorted by": _sort(table) or "-",
            "data grace": format_span(table.data_grace_ms),
            "log grace": format_span(table.log_grace_ms),
            "retention": "for ever" if table.retention_ms is None else format_span(table.retention_ms),
            "oldest time": None if table.horizon_ms is None else format_time(table.horizon_ms),
        }
    )
    out.print()
    if table.schema:
        print_table(("column", "type"), table.schema.items())
    else:
        print_note(NO_COLUMNS)


def _show(config: TableConfig, schema: Mapping[str, str]) -> None:
    _print_config(config)
    out.print()
    columns = {**config.declared, **schema}
    if not columns:
        print_note(NO_COLUMNS)
        return
    print_table(
        ("column", "type", "declared"),
        (
            (column, sql_type, describe_declared(config, column) if column in config.declared else "")
            for column, sql_type in columns.items()
        ),
    )


def _print_config(config: TableConfig) -> None:
    print_pairs(
        {
            "table": config.name,
            "view of": config.view_of,
            "partitions": _partitions(config) or "-",
            "sorted by": _sort(config) or "-",
            "evolution": config.evolution,
            "bad rows": config.on_bad_rows,
            "target file size": format_bytes(config.target_file_bytes),
            "merge fan-in": str(config.merge_fan_in),
            "partitions per flush": f"at most {format_count(config.max_partitions_per_flush)}",
            "slow from": f"{format_count(config.log_files_slow)} log files, "
            f"{format_count(config.backlog_files_slow)} files to merge",
            "stop from": f"{format_count(config.log_files_stop)} log files, "
            f"{format_count(config.backlog_files_stop)} files to merge",
            "data grace": format_span(config.data_grace_ms),
            "log grace": format_span(config.log_grace_ms),
            "retry window": format_span(config.retry_window_ms),
            "orphan age": format_span(config.orphan_age_ms),
            "versions kept": f"the newest {config.keep_versions}" if config.keep_versions else "-",
            "audit kept for": format_span(config.audit_retention_ms),
            "quarantine kept for": (
                "ever" if config.quarantine_retention_ms is None else format_span(config.quarantine_retention_ms)
            ),
            "retention": _describe_retention(config),
        }
    )
    for name in reversed(QUERIES):
        query = getattr(config, name)
        if query is not None:
            out.print(f"\n[bold]{name.replace('_', ' ')}[/]")
            print_line(escape(query))
    if config.source:
        columns = ", ".join(f"{column} {sql_type}" for column, sql_type in config.source.items())
        print_line(f"[bold]over[/] {escape(columns)}")


def _describe_retention(config: TableConfig) -> str:
    if config.retention_ms is None:
        return "for ever"
    field = config.retention_field or "the first time partition"
    return f"{format_span(config.retention_ms)} after the end of a partition, by {field}"


def _partitions(table: TableConfig | TableInfo) -> str:
    fields = table.partition if isinstance(table, TableConfig) else table.partition_fields
    return ", ".join(map(str, fields))


def _sort(table: TableConfig | TableInfo) -> str:
    return ", ".join(table.sort if isinstance(table, TableConfig) else table.sort_columns)


def _to_json(table: TableConfig | TableInfo) -> dict[str, Any]:
    if isinstance(table, TableConfig):
        fields = table.model_dump(mode="json")
        return {"table": fields.pop("name"), **fields, "partition": [str(field) for field in table.partition]}
    fields = asdict(table)
    partition, sort = fields.pop("partition_fields"), fields.pop("sort_columns")
    return {"table": fields.pop("name"), "partition": [str(field) for field in partition], "sort": list(sort), **fields}


def _check_queries(
    run: Run, config: TableConfig, *, schema: Mapping[str, str] | None = None, timeout_ms: int
) -> dict[str, str]:
    """Let a worker check the queries of a configuration; where there is no Redis, check them here.

    Args:
        run: The command.
        config: The whole configuration, as the table will have it.
        schema: Columns that the table's log has already, with types.
        timeout_ms: How long to wait for a worker.

    Returns:
        The columns that an ``insert_query`` or a ``view_query`` gives, with their types.

    Raises:
        InvalidRequest: A query does not fit; the worker's own words.
        TimedOut: No worker answered in time.
        IceDBError: The worker failed.
    """
    arguments: dict[str, Any] = {"config": config.model_dump(mode="json")}
    if schema is not None:
        arguments["schema"] = dict(schema)
    queries = " and the ".join(name for name in QUERIES if getattr(config, name) is not None)
    what = f"the {queries} of table {config.name}"
    task = run.task(INGEST_CHECK_QUERY, config.name, arguments)
    try:
        result = task.ask_first(
            timeout_ms,
            late=f"{what} was not checked, and nothing was changed: no ingest worker "
            f"answered within {timeout_ms / 1000:g} s. Start one and try again, or raise --check-timeout",
            away="",
            refused=f"{what} is refused",
            failed=f"{what} could not be checked",
        )
    except Unavailable:  # no Redis: the engine is here, too, and a check writes nothing
        result = run.do(task.name, task.table, task.arguments)
    return {str(column): str(sql_type) for column, sql_type in result["schema"].items()}


app.command("drop")(trash.drop)
app.command("undrop")(trash.undrop)
app.command("trash")(trash.trash)


@view_app.command("list")
@command()
def list_views(run: Run, *, source: str = argument("Name of the table that feeds them.")) -> None:
    """List the views of a table: whether they are fed, and what they have still to take.

    Example: icedb view list events
    """
    lags = list_view_lags(run.open(source), on_halt=lambda name, error: print_error(f"view {name} is halted: {error}"))
    why = {lag.view: read_last_refusal(run.place(lag.view)) if lag.refused_commits else None for lag in lags}
    views = [{**asdict(lag), "last_refusal": why[lag.view]} for lag in lags]
    run.answer({"table": source, "views": views}, lambda: _show_lags(source, lags, why))


def _show_lags(source: str, lags: Sequence[ViewLag], why: Mapping[str, str | None]) -> None:
    if not lags:
        print_note(f"table {source} has no views; create one with `icedb table create NAME --from {source} --query …`")
        return
    print_table(
        ("view", "state", ">waiting", ">lag", ">refused"),
        (
            (
                lag.view,
                lag.state,
                lag.waiting_commits,
                format_span(lag.lag_ms) if lag.waiting_commits else None,
                lag.refused_commits,
            )
            for lag in lags
        ),
    )
    for view, reason in why.items():
        if reason:
            print_line(escape(f"{view} has not taken the rows of refused commits; why, the last time: {reason}"))


@view_app.command("detach")
@command()
def detach(
    run: Run,
    *,
    name: str = argument("Name of the view."),
    source: str | None = option("--from", "Its source, if the view's table is gone.", metavar="TABLE"),
) -> None:
    """Stop feeding a view, so that its source keeps nothing for it any more. The view keeps its rows.

    Example: icedb view detach hourly
    """
    of = run.place(source) if source else source_of(run.place(name), run.client.table_config(name))
    is_changed = detach_view(of, name, clock=run.clock)
    what = f"is not fed by {of.name} any more; what is committed now is lost to it"
    run.answer(
        {"view": name, "source": of.name, "changed": is_changed},
        lambda: out.print(f"view [bold]{escape(name)}[/] {what if is_changed else 'is detached already'}"),
    )


@view_app.command("attach")
@command()
def attach(run: Run, *, name: str = argument("Name of the view.")) -> None:
    """Feed a detached view again, with what is committed from now on; what came in between stays out of it.

    Example: icedb view attach hourly
    """
    of = source_of(run.place(name), run.client.table_config(name))
    run.client.table_config(of.name)
    register_view(of, name, clock=run.clock, is_new=True)
    run.answer(
        {"view": name, "source": of.name, "state": "active"},
        lambda: out.print(f"view [bold]{escape(name)}[/] is fed by {of.name}"),
    )


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return names from texts that hold one or several, separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())

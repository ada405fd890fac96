"""``icedb table``: create, alter, list, show. The trash is :mod:`icedb.cli.trash`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

import typer
from icedb_client.requests import TableInfo
from icedb_log.changes.table_changes import alter_table_config, plan_change
from icedb_log.errors import HaltError, IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.feed.views import create_view, register_view, require_no_cycle, source_of
from icedb_log.names import INGEST_CHECK_QUERY
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.adoption import require_fit
from icedb_log.store.table_store import TableStore
from icedb_log.table.promoted_paths import STAR, spell_path
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import (
    QUERIES,
    TIME_TRANSFORMS,
    PartitionField,
    TableConfig,
    with_plausible_times,
)
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
from icedb.cli.runner import (
    FAILED,
    HALTED,
    Commands,
    Run,
    TableName,
    argument,
    command,
    describe_no_tables,
    flag,
    is_served,
    option,
)
from icedb.cli.table_settings import ALTER_FIELDS, CREATE_FIELDS, describe_declared, read_settings, with_settings

app = Commands(help="Create, change and look at tables.")

NO_COLUMNS: Final = "no columns yet: they come with the first events"


@app.command("create")
@with_settings(CREATE_FIELDS, shows_defaults=True)
@command(timeout="2m")
def create(
    run: Run,
    *,
    name: str = argument("1 to 63 of a-z, 0-9 and _, beginning with a letter.", metavar="NAME"),
    partition: list[str] | None = option(
        "--partition",
        f"One level of partitions: column, d=day(ts), {'|'.join(TIME_TRANSFORMS)}(column), "
        "u=bucket[16](user_id), p=truncate[2](country). Repeat for more levels.",
        metavar="FIELD",
    ),
    sort: list[str] | None = option("--sort", "Sort columns of data files, e.g. event,ts.", metavar="COLUMNS"),
    settings: Mapping[str, Any],
    if_not_exists: bool = flag("--if-not-exists", "Succeed if the table exists with the same configuration."),
) -> None:
    """Create a table. Its partitions and sort order are fixed from then on."""
    fields = read_settings(settings)
    if ("view_of" in fields) != ("view_query" in fields):
        raise InvalidRequest("a view needs both: --from TABLE, which feeds it, and --query SQL over _rows")
    given = TableConfig.create(
        name=name,
        partition=tuple(PartitionField.parse(text) for text in partition or ()),
        sort=split_names(sort or ()),
        **fields,
    )
    config = with_plausible_times(given, said=fields.get("times"))
    if config.insert_query is not None and not config.source:
        raise InvalidRequest(
            "--insert-query needs --source NAME:TYPE for each column of _rows that it uses, so that it can be checked"
        )
    place = run.place(name)
    place.store.probe()
    if config.view_of is not None:
        require_no_cycle(place, config)
    if any(getattr(config, query) is not None for query in QUERIES):
        found = _check_queries(run, config, timeout_ms=run.timeout_ms)
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
        kept = {name: getattr(there, name) for name in ("evolution", "on_bad_rows") if name not in fields}
        kept["times"] = there.times if there.times == given.times else config.times
        kept["undropped"] = there.undropped
        if there != config.model_copy(update=kept):
            raise InvalidRequest(
                f"table {name!r} exists with another configuration; see `icedb table show {name}`"
            ) from None
        if config.view_of is not None:  # its creation may have stopped halfway
            register_view(source_of(place, config), name, clock=run.clock, backfill=config.has_backfill)
    run.answer(
        {"table": name, "created": is_new, "config": config.model_dump(mode="json")},
        lambda: _show_created(run, config, is_new=is_new),
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


def _show_created(run: Run, config: TableConfig, *, is_new: bool) -> None:
    out.print(f"table [bold]{config.name}[/] {'created' if is_new else 'is there already'}")
    if is_new and config.view_of is not None:
        from icedb.lake import describe_unfed_rows  # noqa: PLC0415 - for views alone

        if unfed := describe_unfed_rows(run.client, config):
            print_note(unfed)


@app.command("alter")
@with_settings(ALTER_FIELDS, shows_defaults=False)
@command(timeout="2m")
def alter(
    run: Run,
    *,
    name: TableName,
    settings: Mapping[str, Any],
) -> None:
    """Change what may change of a table; grace periods only grow. Partitions, sort order, insert query are fixed."""
    change = read_settings(settings, is_change=True)
    if "declared" in change:
        change["declared"] = {column: None if kind == "OFF" else kind for column, kind in change["declared"].items()}
    if not change:
        raise InvalidRequest("nothing to change: give at least one option, see `icedb table alter --help`")
    before = run.client.table_config(name)
    if change.get("merge_query") is not None:
        others: dict[str, Any] = {"insert_query": None, "source": {}, "view_of": None, "view_query": None}
        others["view_backfill"] = "off"
        _check_queries(
            run,
            plan_change(before, change).model_copy(update=others),
            schema=run.client.snapshot(name).schema,
            timeout_ms=run.timeout_ms,
        )
    config = alter_table_config(run.place(name), change, clock=run.clock)

    def show() -> None:
        if config == before:
            out.print(f"table [bold]{name}[/] is so already")
            return
        out.print(f"table [bold]{name}[/] changed; workers use it from their next run on")
        if filling := [column for column, path in config.promoted.items() if path and column not in before.promoted]:
            print_note(
                f"{', '.join(filling)}: readers see it when all data files have it; merges fill them, and "
                f"`icedb status {name}` shows how far they are"
            )
        if config.retention_ms != before.retention_ms and config.retention_ms is not None:
            print_note(f"`icedb partitions {name} --expired` shows what retention will remove")

    run.answer({"table": name, "changed": config != before, "config": config.model_dump(mode="json")}, show)


@app.command("list")
@command(records="tables")
def list_tables(
    run: Run,
    *,
    in_trash: bool = flag("--trash", "Dropped tables: when, until when, what their purge waits for."),
) -> None:
    """List the tables of the warehouse. A table that cannot be read does not hide the others."""
    if in_trash:
        trash.list_trash(run)
    else:
        _list_live(run)


def _list_live(run: Run) -> None:
    found: list[TableConfig | TableInfo] = []
    problems: dict[str, IceDBError] = {}
    client, has_store = run.client, not is_served(run.client)
    for name in client.warehouse.list_tables() if has_store else client.tables():
        try:
            found.append(client.table_config(name) if has_store else client.table(name))
        except (HaltError, Unavailable) as error:
            problems[name] = error
        except NotFound:
            continue  # dropped since the names were listed

    def show() -> None:
        if found:
            rows = ((table.name, _partitions(table) or None, _sort(table) or None) for table in found)
            print_table(("table", "partitions", "sorted by"), rows)
        elif not problems:
            print_note(describe_no_tables(run.client) if has_store else "no tables that these credentials may read")

    run.answer(
        {
            "tables": [_to_json(table) for table in found],
            "unreadable": {name: str(error) for name, error in problems.items()},
        },
        show,
    )
    for name, problem in problems.items():
        print_error(f"table {name} cannot be read: {problem}")
    if problems:
        raise typer.Exit(HALTED if any(isinstance(error, HaltError) for error in problems.values()) else FAILED)


@app.command("show")
@command()
def show_table(run: Run, *, name: TableName) -> None:
    """Show a table's configuration and columns."""
    if is_served(run.client):
        table = run.client.table(name)
        run.answer(_to_json(table), lambda: _show_served(table))
        return
    config = run.client.table_config(name)
    schema = dict(run.client.snapshot(name).schema)
    prefix = run.place(name).paths.prefix
    run.answer({**_to_json(config), "prefix": prefix, "schema": schema}, lambda: _show(config, schema, prefix=prefix))


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
        paths = {column: spell_path(path) for column, path in table.promoted.items()}
        names = ("column", "type", "promoted from") if paths else ("column", "type")
        print_table(names, ((*pair, paths.get(pair[0], ""))[: len(names)] for pair in table.schema.items()))
    else:
        print_note(NO_COLUMNS)


def _show(config: TableConfig, schema: Mapping[str, str], *, prefix: str) -> None:
    _print_config(config, prefix=prefix)
    out.print()
    columns = {**config.declared, **schema}
    hidden = config.find_hidden(schema) if schema else {}
    if not columns:
        print_note(NO_COLUMNS)
        return
    print_table(
        ("column", "type", "declared"),
        (
            (column, sql_type, _describe_column(config, column, is_hidden=column in hidden))
            for column, sql_type in columns.items()
        ),
    )


def _describe_column(config: TableConfig, column: str, *, is_hidden: bool) -> str:
    text = describe_declared(config, column) if column in config.declared else ""
    return f"{text} (filling)" if is_hidden and config.promoted[column] else text


def _describe_below(config: TableConfig) -> str:
    return ", ".join(spell_path((*path, STAR)) for path in config.promoted_below)


def _print_config(config: TableConfig, *, prefix: str) -> None:
    print_pairs(
        {
            "table": config.name,
            "prefix": prefix,
            "promoted by itself": _describe_below(config) or None,
            "view of": config.view_of,
            "partitions": _partitions(config) or "-",
            "sorted by": _sort(config) or "-",
            "evolution": config.evolution,
            "bad rows": config.on_bad_rows,
            "target file size": format_bytes(config.target_file_bytes),
            "merge fan-in": str(config.merge_fan_in),
            "partitions per flush": f"at most {format_count(config.max_partitions_per_flush)}",
            "data grace": format_span(config.data_grace_ms),
            "log grace": format_span(config.log_grace_ms),
            "retry window": format_span(config.retry_window_ms),
            "orphan age": format_span(config.orphan_age_ms),
            "audit kept": format_span(config.audit_retention_ms),
            "quarantine kept": (
                "for ever" if config.quarantine_retention_ms is None else format_span(config.quarantine_retention_ms)
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
    if config.retention_ms is None or config.age_field is None:
        return "for ever"
    return f"{format_span(config.retention_ms)} after the end of a partition, by {config.age_field.name}"


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
            f"answered within {timeout_ms / 1000:g} s. Start one and try again, or raise --timeout",
            away="",
            refused=f"{what} is refused",
            failed=f"{what} could not be checked",
        )
    except Unavailable:  # no Redis: the engine is here, too, and a check writes nothing
        result = run.do(task.name, task.table, task.arguments)
    return {str(column): str(sql_type) for column, sql_type in result["schema"].items()}


app.command("drop")(trash.drop)
app.command("undrop")(trash.undrop)


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return names from texts that hold one or several, separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())

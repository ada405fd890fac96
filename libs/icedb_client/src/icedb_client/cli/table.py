"""``icedb table``: create, alter, list, show."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import HaltError, InvalidRequest, NotFound
from icedb_log.feed.views import require_no_cycle
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_changes import alter_table_config, plan_change
from icedb_log.table.table_config import NEW_TABLE_POLICIES, PartitionField, TableConfig, with_plausible_times
from rich.markup import escape

from icedb_client.cli.exits import HALTED
from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_count,
    format_span,
    make_table,
    out,
    print_error,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import parse_duration, split_names
from icedb_client.cli.query_check import check_merge_query, check_queries, has_queries
from icedb_client.cli.served_tables import is_served, list_served, show_served
from icedb_client.cli.session import open_client
from icedb_client.cli.table_options import (
    AuditRetention,
    BacklogFilesSlow,
    BacklogFilesStop,
    CheckTimeout,
    Column,
    DataGrace,
    Evolution,
    InsertQuery,
    KeepVersions,
    LogFilesSlow,
    LogFilesStop,
    LogGrace,
    MaxPartitions,
    MergeFanIn,
    MergeQuery,
    OnBadRows,
    OrphanAge,
    Plausible,
    QuarantineRetention,
    Retention,
    RetentionField,
    Source,
    TargetFileMb,
    ViewQuery,
    ViewSource,
    describe_declared,
    read_fields,
    read_merge_query,
    read_quarantine_retention,
    read_retention,
    read_view,
)
from icedb_client.cli.view import create_any_table, describe_view, finish_creation

app = typer.Typer(no_args_is_help=True, help="Create, change and look at tables.")


@app.command("create")
def create(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9 and _, beginning with a letter.")],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="FIELD",
            help="One level of partitions: column, d=day(ts), year|month|day|hour(column), "
            "u=bucket[16](user_id), p=truncate[2](country). Repeat for more levels.",
        ),
    ] = None,
    sort: Annotated[
        list[str] | None, typer.Option("--sort", metavar="COLUMNS", help="Sort columns of data files, e.g. event,ts.")
    ] = None,
    column: Column = None,
    plausible: Plausible = None,
    evolution: Evolution = None,
    on_bad_rows: OnBadRows = None,
    insert_query: InsertQuery = None,
    source: Source = None,
    view_source: ViewSource = None,
    view_query: ViewQuery = None,
    merge_query: MergeQuery = None,
    target_file_mb: TargetFileMb = None,
    merge_fan_in: MergeFanIn = None,
    max_partitions_per_flush: MaxPartitions = None,
    log_files_slow: LogFilesSlow = None,
    log_files_stop: LogFilesStop = None,
    backlog_files_slow: BacklogFilesSlow = None,
    backlog_files_stop: BacklogFilesStop = None,
    data_grace: DataGrace = None,
    log_grace: LogGrace = None,
    orphan_age: OrphanAge = None,
    keep_versions: KeepVersions = None,
    audit_retention: AuditRetention = None,
    quarantine_retention: QuarantineRetention = None,
    retention: Retention = None,
    retention_field: RetentionField = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the table is there with the same configuration.")
    ] = False,
    check_timeout: CheckTimeout = "2m",
    as_json: JsonFlag = False,
) -> None:
    """Create a table. Its partitions and sort order are fixed from then on.

    Example: icedb table create events --partition 'd=day(ts)' --sort event,ts
    """
    fields = read_fields(
        column=column,
        plausible=plausible,
        source=source,
        insert_query=insert_query,
        target_file_mb=target_file_mb,
        data_grace=data_grace,
        log_grace=log_grace,
        orphan_age=orphan_age,
        keep_versions=keep_versions,
        audit_retention=audit_retention,
        evolution=evolution,
        on_bad_rows=on_bad_rows,
        merge_fan_in=merge_fan_in,
        max_partitions_per_flush=max_partitions_per_flush,
        log_files_slow=log_files_slow,
        log_files_stop=log_files_stop,
        backlog_files_slow=backlog_files_slow,
        backlog_files_stop=backlog_files_stop,
    )
    given = TableConfig.create(
        name=name,
        partition=tuple(PartitionField.parse(text) for text in partition or ()),
        sort=split_names(sort or ()),
        **{**NEW_TABLE_POLICIES, **fields},
        **read_retention(retention, retention_field),
        **read_quarantine_retention(quarantine_retention),
        **read_view(view_source, view_query),
        **read_merge_query(merge_query),
    )
    config = with_plausible_times(given, said=fields.get("times"))
    if config.insert_query is not None and not config.source:
        raise InvalidRequest(
            "--insert-query needs --source NAME:TYPE for each column of _rows that it uses, so that it can be checked"
        )
    check_timeout_ms = parse_duration(check_timeout, option="--check-timeout")
    with open_client(context) as client:
        store, paths = client.warehouse.store, client.warehouse.table(name)
        store.probe()
        if config.view_of is not None:
            require_no_cycle(store, paths, config)
        if has_queries(config):
            found = check_queries(client, config, timeout_ms=check_timeout_ms)
            config = config.model_copy(update={"declared": {**found, **config.declared}})
        is_new = True
        try:
            create_any_table(store, paths, config)
        except InvalidRequest as error:
            if not if_not_exists:
                raise
            is_new = False
            try:
                there = read_table_config(store, paths)
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
            finish_creation(store, paths, config)
    if as_json:
        print_json({"table": name, "created": is_new, "config": config.model_dump(mode="json")})
    elif is_new:
        out.print(f"table [bold]{name}[/] created")
    else:
        out.print(f"table [bold]{name}[/] is there already")


@app.command("alter")
def alter(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    column: Column = None,
    plausible: Plausible = None,
    undeclare: Annotated[
        list[str] | None,
        typer.Option("--undeclare", metavar="NAME", help="Take back a column's declaration; its data stay. Repeat."),
    ] = None,
    evolution: Evolution = None,
    on_bad_rows: OnBadRows = None,
    merge_query: MergeQuery = None,
    target_file_mb: TargetFileMb = None,
    merge_fan_in: MergeFanIn = None,
    max_partitions_per_flush: MaxPartitions = None,
    log_files_slow: LogFilesSlow = None,
    log_files_stop: LogFilesStop = None,
    backlog_files_slow: BacklogFilesSlow = None,
    backlog_files_stop: BacklogFilesStop = None,
    data_grace: DataGrace = None,
    orphan_age: OrphanAge = None,
    keep_versions: KeepVersions = None,
    audit_retention: AuditRetention = None,
    quarantine_retention: QuarantineRetention = None,
    retention: Retention = None,
    retention_field: RetentionField = None,
    check_timeout: CheckTimeout = "2m",
    as_json: JsonFlag = False,
) -> None:
    """Change what may change of a table; grace periods only grow. Partitions, sort order, insert query are fixed.

    Example: icedb table alter events --evolution widen --column price:DOUBLE
    """
    change = read_fields(
        column=column,
        plausible=plausible,
        source=None,
        insert_query=None,
        target_file_mb=target_file_mb,
        data_grace=data_grace,
        log_grace=None,
        orphan_age=orphan_age,
        keep_versions=keep_versions,
        audit_retention=audit_retention,
        evolution=evolution,
        on_bad_rows=on_bad_rows,
        merge_fan_in=merge_fan_in,
        max_partitions_per_flush=max_partitions_per_flush,
        log_files_slow=log_files_slow,
        log_files_stop=log_files_stop,
        backlog_files_slow=backlog_files_slow,
        backlog_files_stop=backlog_files_stop,
    )
    change |= read_retention(retention, retention_field) | read_merge_query(merge_query)
    change |= read_quarantine_retention(quarantine_retention)
    taken_back = dict.fromkeys(split_names(undeclare or ()))
    both = sorted(taken_back.keys() & change.get("declared", {}).keys())
    if both:
        raise InvalidRequest(f"column {both[0]!r} is in --column and in --undeclare: give one of them")
    if taken_back:
        change["declared"] = {**change.get("declared", {}), **taken_back}
    if not change:
        raise InvalidRequest("nothing to change: give at least one option, see `icedb table alter --help`")
    with open_client(context, table=name) as client:
        before = client.table_config(name)
        if change.get("merge_query") is not None:
            check_merge_query(
                client,
                plan_change(before, change),
                schema=client.snapshot(name).schema,
                timeout_ms=parse_duration(check_timeout, option="--check-timeout"),
            )
        config = alter_table_config(client.warehouse.store, client.warehouse.table(name), change, clock=SystemClock())
    if as_json:
        print_json({"table": name, "changed": config != before, "config": config.model_dump(mode="json")})
    elif config != before:
        out.print(f"table [bold]{name}[/] changed; workers go by it from their next run on")
        if config.retention_ms != before.retention_ms and config.retention_ms is not None:
            print_note(f"`icedb partitions expire {name} --dry-run` shows what retention will remove")
    else:
        out.print(f"table [bold]{name}[/] is so already")


@app.command("list")
def list_tables(*, context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the tables of the warehouse. One that cannot be read hides none of the others.

    Example: icedb table list --json
    """
    configs: list[TableConfig] = []
    problems: dict[str, str] = {}
    with open_client(context) as client:
        if is_served(client):
            if not list_served(client, as_json=as_json):
                raise typer.Exit(HALTED)
            return
        names = client.warehouse.list_tables()
        for name in names:
            try:
                configs.append(client.table_config(name))
            except HaltError as error:
                problems[name] = str(error)
    if as_json:
        print_json({"tables": [_to_json(config) for config in configs], "unreadable": problems})
    elif not names:
        print_note("no tables yet; create one with `icedb table create`")
    elif configs:
        _print_tables(configs)
    for problem in problems.values():
        print_error(problem)
    if problems:
        raise typer.Exit(HALTED)


def _print_tables(configs: Iterable[TableConfig]) -> None:
    table = make_table("table", "partitions", "sorted by")
    for config in configs:
        partitions = ", ".join(str(field) for field in config.partition)
        table.add_row(escape(config.name), escape(partitions or "-"), escape(", ".join(config.sort) or "-"))
    out.print(table)


@app.command("show")
def show(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    as_json: JsonFlag = False,
) -> None:
    """Show a table's configuration and columns.

    Example: icedb table show events
    """
    with open_client(context, table=name) as client:
        if is_served(client):
            show_served(client, name, as_json=as_json)
            return
        config = client.table_config(name)
        schema = dict(client.snapshot(name).schema)
    if as_json:
        print_json({**_to_json(config), "schema": schema})
        return
    _print_config(config)
    out.print()
    table = make_table("column", "type", "declared")
    for column, sql_type in {**config.declared, **schema}.items():
        declared = config.declared.get(column, "")
        table.add_row(escape(column), sql_type, describe_declared(config, column) if declared else "")
    if table.row_count:
        out.print(table)
    else:
        print_note("no columns yet: they come with the first events")


def _print_config(config: TableConfig) -> None:
    print_pairs(
        {
            "table": config.name,
            **describe_view(config),
            "partitions": ", ".join(str(field) for field in config.partition) or "-",
            "sorted by": ", ".join(config.sort) or "-",
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
    if config.view_query is not None:
        out.print("\n[bold]view query[/]")
        out.print(escape(config.view_query), soft_wrap=True)
    if config.merge_query is not None:
        out.print("\n[bold]merge query[/]")
        out.print(escape(config.merge_query), soft_wrap=True)
    if config.insert_query is not None:
        out.print("\n[bold]insert query[/]")
        out.print(escape(config.insert_query), soft_wrap=True)
        if config.source:
            columns = ", ".join(f"{column} {sql_type}" for column, sql_type in config.source.items())
            out.print(f"[bold]over[/] {escape(columns)}", soft_wrap=True)


def _describe_retention(config: TableConfig) -> str:
    if config.retention_ms is None:
        return "for ever"
    field = config.retention_field or "the first time partition"
    return f"{format_span(config.retention_ms)} after the end of a partition, by {field}"


def _to_json(config: TableConfig) -> dict[str, Any]:
    fields = config.model_dump(mode="json")
    return {"table": fields.pop("name"), **fields, "partition": [str(field) for field in config.partition]}

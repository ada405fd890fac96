"""``icedb table``: create, list, show."""

from typing import Annotated, Any

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.table_config import MIB, PartitionField, TableConfig, create_table, read_table_config
from rich.markup import escape

from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_span,
    make_table,
    out,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import parse_columns, parse_duration, split_names
from icedb_client.cli.session import open_client

app = typer.Typer(no_args_is_help=True, help="Create and look at tables.")


@app.command("create")
def create(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9 and _, beginning with a letter.")],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            help="One level of partitions: column, d=day(ts), year|month|day|hour(column), "
            "u=bucket[16](user_id), p=truncate[2](country). Repeat for more levels.",
        ),
    ] = None,
    sort: Annotated[list[str] | None, typer.Option("--sort", help="Sort columns of data files, e.g. event,ts.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", help="Declare a column's type, e.g. price=DOUBLE. Others are found in the data."),
    ] = None,
    target_file_mb: Annotated[
        float, typer.Option("--target-file-mb", help="Data files of this size (MiB) are not merged any more.")
    ] = 128,
    merge_fan_in: Annotated[
        int, typer.Option("--merge-fan-in", help="Files of similar size that are merged at once, from 2.")
    ] = 8,
    data_grace: Annotated[
        str, typer.Option("--data-grace", help="How long a dead data file stays: longer than the longest query.")
    ] = "6h",
    log_grace: Annotated[
        str,
        typer.Option("--log-grace", help="How long a dead log file stays: bounds time travel and retries of a batch."),
    ] = "10m",
    orphan_age: Annotated[
        str, typer.Option("--orphan-age", help="A data file that no log file names is deleted after this.")
    ] = "24h",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the table is there with the same configuration.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a table. Its partitions and sort order are fixed from then on.

    Example: icedb table create events --partition 'd=day(ts)' --sort event,ts
    """
    config = TableConfig.create(
        name=name,
        partition=tuple(PartitionField.parse(text) for text in partition or ()),
        sort=split_names(sort or ()),
        declared=parse_columns(column or ()),
        target_file_bytes=int(target_file_mb * MIB),
        merge_fan_in=merge_fan_in,
        data_grace_ms=parse_duration(data_grace, option="--data-grace"),
        log_grace_ms=parse_duration(log_grace, option="--log-grace"),
        orphan_age_ms=parse_duration(orphan_age, option="--orphan-age"),
    )
    with open_client(context) as client:
        store, paths = client.warehouse.store, client.warehouse.table(name)
        store.probe()
        is_new = True
        try:
            create_table(store, paths, config)
        except InvalidRequest:
            if not if_not_exists:
                raise
            is_new = False
            if read_table_config(store, paths) != config:
                raise InvalidRequest(
                    f"table {name!r} exists with another configuration; see `icedb table show {name}`"
                ) from None
    if as_json:
        print_json({"table": name, "created": is_new, "config": config.model_dump(mode="json")})
    elif is_new:
        out.print(f"table [bold]{name}[/] created")
    else:
        out.print(f"table [bold]{name}[/] is there already")


@app.command("list")
def list_tables(*, context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the tables of the warehouse.

    Example: icedb table list --json
    """
    with open_client(context) as client:
        names = client.warehouse.list_tables()
        configs = [client.table_config(name) for name in names]
    if as_json:
        print_json({"tables": [_to_json(config) for config in configs]})
        return
    if not names:
        print_note("no tables yet; create one with `icedb table create`")
        return
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
        config = client.table_config(name)
        schema = dict(client.snapshot(name).schema)
    if as_json:
        print_json({**_to_json(config), "schema": schema})
        return
    print_pairs(
        {
            "table": config.name,
            "partitions": ", ".join(str(field) for field in config.partition) or "-",
            "sorted by": ", ".join(config.sort) or "-",
            "target file size": format_bytes(config.target_file_bytes),
            "merge fan-in": str(config.merge_fan_in),
            "data grace": format_span(config.data_grace_ms),
            "log grace": format_span(config.log_grace_ms),
            "orphan age": format_span(config.orphan_age_ms),
        }
    )
    out.print()
    table = make_table("column", "type", "declared")
    for column, sql_type in {**schema, **config.declared}.items():
        table.add_row(escape(column), sql_type, "yes" if column in config.declared else "")
    if table.row_count:
        out.print(table)
    else:
        print_note("no columns yet: they come with the first events")


def _to_json(config: TableConfig) -> dict[str, Any]:
    fields = config.model_dump(mode="json")
    return {"table": fields.pop("name"), **fields, "partition": [str(field) for field in config.partition]}

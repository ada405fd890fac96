"""``icedb status``: every table in figures, read from its log; ``--watch`` is :mod:`icedb.cli.status_watch`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import typer
from icedb_log.errors import IceDBError, Unavailable
from icedb_log.ingest.pressure import describe_failure
from icedb_log.names import INGEST_FLUSH, TASKS
from icedb_log.serving.status import TableStatus, read_status
from icedb_log.store.object_store import limit_reads, map_each
from icedb_log.units import SECOND_MS

from icedb.cli.output import print_error, print_note
from icedb.cli.runner import FAILED, HALTED, Run, argument, command, flag, is_served
from icedb.cli.status_figures import Found, read_figures, show_all, show_found, to_document

READ_THREADS: Final = 16
FEW_TABLES: Final = 4
"""So many tables are read one after the other; of more, some at once."""
LATE_MS: Final = 10 * SECOND_MS
"""For staged batches that wait longer Redis is asked what the ingest workers do."""


@command(records="tables")
def status(
    run: Run,
    *,
    table: str | None = argument("Name of a table; all tables by default.", None, metavar="[TABLE]"),
    watch: bool = flag("--watch", "Show it live, until Ctrl-C; with -o json or -o ndjson a document per line."),
) -> None:
    """Show files, rows, staged batches, merge lag and health of tables.

    Reads the store. Without one, the snapshot service tells of all tables what it has read last for its own metrics.
    """
    if watch:
        from icedb.cli.status_watch import watch_status  # noqa: PLC0415 - for those who watch

        watch_status(run, table)
        return
    if table is None and is_served(run.client):
        documents = _ask_service(run)
        run.answer({"tables": documents}, lambda: show_all(run, documents))
    else:
        found = _read(run, table)
        document = to_document(found)
        documents = document["tables"]
        cost = None if table is None else _add_cost(run, table, document)
        run.answer(document, lambda: show_found(run, table, found, cost=cost))
    for each in documents:
        if problem := _find_problem(each):
            print_error(problem)
    for note in _find_busy_workers(run, documents):
        print_note(note)
    if any(each["halted"] for each in documents):
        raise typer.Exit(HALTED)
    if any("error" in each for each in documents):
        raise typer.Exit(FAILED)


def _read(run: Run, table: str | None) -> Found:
    def read(name: str) -> TableStatus | IceDBError | None:
        return read_figures(name, lambda name: read_status(run.open(name)), is_only=table is not None)

    names = (table,) if table is not None else run.client.warehouse.list_tables()
    threads = limit_reads(run.client.warehouse.store, READ_THREADS) if len(names) > FEW_TABLES else 1
    states = zip(names, map_each(read, names, threads=threads, name="icedb-status"), strict=True)
    return {name: state for name, state in states if state is not None}


def _ask_service(run: Run) -> Sequence[dict[str, Any]]:
    from icedb_client.grpc_reads import GrpcReads  # noqa: PLC0415 - for those who have a service

    with closing(GrpcReads(run.client.settings, clock=run.clock)) as reads:
        return reads.figures()


def _add_cost(run: Run, table: str, document: dict[str, Any]) -> str | None:
    """Add what a table costs a day to its document, and return it in words; ``None``: nobody is asked."""
    url = run.client.settings.prometheus_url
    if not url:
        return None
    from icedb.cli.table_cost import describe_cost, read_cost  # noqa: PLC0415 - for those who have a Prometheus

    try:
        costs = read_cost(url, table)
    except IceDBError as error:  # the other figures are the store's, and are there
        return f"not known: {error}"
    document["tables"][0]["cost_dollars_per_day"] = dict(costs)
    return describe_cost(costs)


def _find_busy_workers(run: Run, documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what ingest workers do while batches of other tables wait: a slow query of one table delays the others."""
    settings = run.client.settings
    late = {each["table"] for each in documents if each.get("staged_batches") and each["staged_lag_ms"] >= LATE_MS}
    if not late or "redis_url" not in settings.model_fields_set:
        return
    from icedb_client.wakeups import look_at_redis  # noqa: PLC0415 - redis only where it is used

    try:
        workers = look_at_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms).workers
    except Unavailable as error:
        yield f"what the ingest workers do cannot be asked: {error}"
        return
    for worker in workers:
        tasks = [f"{task} of table {table}" for task, table in worker.doing if table and {table} != late]
        if worker.queue == TASKS[INGEST_FLUSH] and tasks:
            yield f"staged batches wait while {worker.name} runs {', '.join(tasks)}"


def _find_problem(table: Mapping[str, Any]) -> str:
    name, error = table["table"], table.get("error")
    if error is not None:
        return f"table {name} {'is halted' if table['halted'] else 'cannot be read'}: {error['message']}"
    return describe_failure(name, table["failing"]) if table["failing"] else ""

"""Asks an ingest worker whether a table's queries fit it: the client has no Spark."""

from collections.abc import Mapping
from typing import Any, Final

from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.names import INGEST_CHECK_QUERY
from icedb_log.table.table_config import TableConfig

from icedb_client.cli.exits import INVALID, TimedOut, outcome_exit_code
from icedb_client.client import Client

_QUERIES: Final = ("insert_query", "view_query", "merge_query")


def has_queries(config: TableConfig) -> bool:
    """Whether a table has queries that a worker has to check."""
    return any(getattr(config, name) is not None for name in _QUERIES)


def check_merge_query(
    client: Client, config: TableConfig, *, schema: Mapping[str, str] | None = None, timeout_ms: int
) -> None:
    """Let a worker check the ``merge_query`` of a table that exists; arguments and errors as :func:`check_queries`."""
    others: dict[str, Any] = {"insert_query": None, "source": {}, "view_of": None, "view_query": None}
    check_queries(client, config.model_copy(update=others), schema=schema, timeout_ms=timeout_ms)


def check_queries(
    client: Client, config: TableConfig, *, schema: Mapping[str, str] | None = None, timeout_ms: int
) -> dict[str, str]:
    """Let a worker check the queries of a configuration.

    Args:
        client: An open client.
        config: The whole configuration, as the table will have it.
        schema: Columns that the table's log has already, with types.
        timeout_ms: How long to wait for a worker.

    Returns:
        The columns that an ``insert_query`` or a ``view_query`` gives, with their types.

    Raises:
        InvalidRequest: A query does not fit; the worker's own words.
        Unavailable: Redis does not answer.
        TimedOut: No worker answered in time.
        IceDBError: The worker failed.
    """
    from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

    arguments: dict[str, Any] = {"config": config.model_dump(mode="json")}
    if schema is not None:
        arguments["schema"] = dict(schema)
    what = " and the ".join(name for name in _QUERIES if getattr(config, name) is not None)
    try:
        result = client.workers.run(INGEST_CHECK_QUERY, config.name, arguments=arguments, timeout_ms=timeout_ms)
    except TaskTimeout as error:
        raise TimedOut(
            f"the {what} of table {config.name} was not checked, and nothing was changed: no ingest worker "
            f"answered within {timeout_ms / 1000:g} s. Start one and try again, or raise --check-timeout"
        ) from error
    except Unavailable as error:
        raise Unavailable(
            f"the {what} of table {config.name} has to be checked by an ingest worker, and nothing was changed: {error}"
        ) from error
    return _read_schema(f"the {what} of table {config.name}", result)


def _read_schema(what: str, result: dict[str, Any]) -> dict[str, str]:
    outcome = str(result.get("outcome"))
    schema = result.get("schema")
    if outcome == "done" and isinstance(schema, dict):
        return {str(column): str(sql_type) for column, sql_type in schema.items()}
    problem = result.get("error") or {}
    if outcome_exit_code(outcome) == INVALID:
        raise InvalidRequest(f"{what} is refused: {problem.get('message', outcome)}")
    raise IceDBError(f"{what} could not be checked: {problem.get('message', outcome)}")

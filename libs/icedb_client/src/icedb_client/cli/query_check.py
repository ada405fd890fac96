"""Asks an ingest worker whether a query fits a table or a view: the client has no Spark."""

from typing import Any

from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.table_config import TableConfig

from icedb_client.cli.exits import INVALID, TimedOut, outcome_exit_code
from icedb_client.client import Client

CHECK_QUERY = "icedb.ingest.check_query"


def check_insert_query(client: Client, config: TableConfig, *, timeout_ms: int) -> dict[str, str]:
    """Return the columns that a configuration's ``insert_query`` gives, or a view's ``view_query``, with their types.

    Args:
        client: An open client.
        config: The whole configuration, as the table will have it.
        timeout_ms: How long to wait for a worker.

    Raises:
        InvalidRequest: The query does not fit; the worker's own words.
        Unavailable: Redis does not answer.
        TimedOut: No worker answered in time.
        IceDBError: The worker failed.
    """
    from icedb_client.wakeups import TaskTimeout  # noqa: PLC0415 - redis and celery only where they are used

    what = f"the {'insert' if config.view_of is None else 'view'}_query of table {config.name}"
    try:
        result = client.workers.run(
            CHECK_QUERY, config.name, arguments={"config": config.model_dump(mode="json")}, timeout_ms=timeout_ms
        )
    except TaskTimeout as error:
        raise TimedOut(
            f"{what} was not checked, and nothing was changed: no ingest worker "
            f"answered within {timeout_ms / 1000:g} s. Start one and try again, or raise --check-timeout"
        ) from error
    except Unavailable as error:
        raise Unavailable(f"{what} has to be checked by an ingest worker, and nothing was changed: {error}") from error
    return _read_schema(what, result)


def _read_schema(what: str, result: dict[str, Any]) -> dict[str, str]:
    outcome = str(result.get("outcome"))
    schema = result.get("schema")
    if outcome == "done" and isinstance(schema, dict):
        return {str(column): str(sql_type) for column, sql_type in schema.items()}
    problem = result.get("error") or {}
    message = f"{what} is refused: {problem.get('message', outcome)}"
    if outcome_exit_code(outcome) == INVALID:
        raise InvalidRequest(message)
    raise IceDBError(f"{what} could not be checked: {problem.get('message', outcome)}")

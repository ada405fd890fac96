"""The task that checks an ``insert_query`` for the CLI, which has no Spark, before a table is created or altered."""

from collections.abc import Mapping
from typing import Any, Protocol

from icedb_log.errors import InvalidRequest
from icedb_log.table_config import TableConfig
from icedb_service.runs import Work
from icedb_service.worker import Engine, WorkerContext
from pydantic import ValidationError


class CheckingEngine(Engine, Protocol):
    """An engine that knows what a query gives."""

    def check_insert_query(self, config: TableConfig) -> Mapping[str, str]:
        """Return the columns of the result, with types."""
        ...


class QueryTasks:
    """The work of the task, in the process that runs it.

    Args:
        context: Holds the engine.
    """

    def __init__(self, context: WorkerContext[CheckingEngine]) -> None:
        self._context = context

    def check_query(self, table: str, config: dict[str, Any]) -> Work:
        """Say which columns a table's ``insert_query`` gives; nothing is read or written.

        Delivery: sent by the CLI, which waits for the result; a lost or repeated one changes nothing.

        Args:
            table: Its name; it need not exist.
            config: The whole configuration that it will have.

        Returns:
            ``schema``: column to SQL type, to be declared. Outcome ``refused`` with the reason if the query is wrong.
        """
        try:
            parsed = TableConfig.model_validate(config)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise InvalidRequest(f"table {table}: configuration: {problem['loc']}: {problem['msg']}") from error
        return Work(is_idle=False, details={"schema": dict(self._context.engine.check_insert_query(parsed))})

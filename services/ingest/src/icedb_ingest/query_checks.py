"""The task that checks a table's queries for the CLI, which has no Spark, before a table is created or altered."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from icedb_log.errors import InvalidRequest
from icedb_log.feed.feed_state import read_source_schema
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import Need
from icedb_service.runs import Work
from icedb_service.worker import Engine, WorkerContext
from pydantic import ValidationError


class CheckingEngine(Engine, Protocol):
    """An engine that knows what a query gives."""

    def check_insert_query(self, config: TableConfig) -> Mapping[str, str]:
        """Return the columns of the result, with types."""
        ...

    def check_view_query(self, config: TableConfig, source_schema: Mapping[str, str]) -> Mapping[str, str]:
        """Return the columns of the result over rows of the source, with types."""
        ...

    def check_merge_query(self, config: TableConfig, schema: Mapping[str, str]) -> None:
        """Check a table's ``merge_query`` against the columns that its log has."""
        ...


class QueryTasks:
    """The work of the task, in the process that runs it.

    Args:
        context: Holds the engine.
    """

    def __init__(self, context: WorkerContext[CheckingEngine]) -> None:
        self._context = context

    def check_query(self, table: str, config: dict[str, Any], schema: dict[str, str] | None = None) -> Work:
        """Check a table's queries, and say which columns its ``insert_query`` or ``view_query`` gives; no write.

        Delivery: sent by the CLI, which waits for the result; a lost or repeated one changes nothing.

        Args:
            table: Its name; it need not exist.
            config: The whole configuration that it will have.
            schema: Columns that its log has already, with types.

        Returns:
            ``schema``: column to SQL type, to be declared; empty with a ``merge_query`` only. Outcome ``refused`` with
            the reason if a query is wrong.
        """
        try:
            parsed = TableConfig.model_validate(config)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise InvalidRequest(f"table {table}: configuration: {problem['loc']}: {problem['msg']}") from error
        found: Mapping[str, str] = {}
        if parsed.merge_query is None or parsed.insert_query is not None or parsed.view_of is not None:
            found = self._check(parsed)
        if parsed.merge_query is not None:
            declared = parsed.model_copy(update={"declared": {**found, **parsed.declared}})
            self._context.engine.check_merge_query(declared, schema or {})
        return Work(is_idle=False, details={"schema": dict(found)})

    def _check(self, config: TableConfig) -> Mapping[str, str]:
        if config.view_of is None:
            return self._context.engine.check_insert_query(config)
        warehouse = self._context.warehouse
        source = Table.open(warehouse.store, warehouse.table(config.view_of), clock=self._context.clock)
        source_schema = read_source_schema(source)
        return self._context.engine.check_view_query(config, source_schema)


def needs_of_check(arguments: Mapping[str, Any]) -> Sequence[Need]:
    """Return what a check asks for: its table's upkeep and, for a view, to see the columns of its source."""
    config = arguments.get("config")
    source = config.get("view_of") if isinstance(config, dict) else None
    wanted = [Need(Verb.MAINTAIN, str(arguments.get("table")))]
    return [*wanted, Need(Verb.READ, str(source))] if source else wanted

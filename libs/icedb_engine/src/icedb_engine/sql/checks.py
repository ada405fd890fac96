"""Queries and conditions of users, before they are used or stored: DuckDB tries them on a relation without rows."""

from collections.abc import Callable, Mapping
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.jobs import ChangeKind, RowChange
from icedb_log.table.table_config import TYPE_NAMES, TableConfig, is_known_type

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.sql.columns import INSERT_QUERY, ROWS_VIEW, SOURCE_FILES_VIEW, OutputColumn, OutputRules
from icedb_engine.sql.process import CHECK_LIMITS, CheckedSql, QueryProblem, SqlProcess

VIEW_QUERY: Final = "view_query"
VIEWS: Final[Mapping[ChangeKind, str]] = {"rewrite": ROWS_VIEW, "merge_query": SOURCE_FILES_VIEW, "delete": ROWS_VIEW}
"""What SQL of each kind reads."""
WORDS: Final[Mapping[ChangeKind, str]] = {
    "delete": "condition",
    "rewrite": "rewrite query",
    "merge_query": "merge_query",
}


def check_queries(
    config: TableConfig, schema: Mapping[str, str], *, read_source: Callable[[str], Mapping[str, str]]
) -> Mapping[str, str]:
    """Check the queries of a configuration; return the columns that they give, with types. Nothing is written.

    Args:
        config: Whole, as the table will have it.
        schema: Columns that the table's log has already, with types.
        read_source: Returns the columns of a view's source, logged and declared, by its name.

    Raises:
        InvalidRequest: There is no query, or one does not fit.
        Unavailable: No process for it can be started.
        IceDBError: What ``read_source`` raised.
    """
    found: Mapping[str, str] = {}
    if config.view_of is not None:
        found = check_view_query(config, read_source(config.view_of))
    elif config.merge_query is None or config.insert_query is not None:
        found = check_insert_query(config)
    if config.merge_query is not None:
        declared = config.model_copy(update={"declared": {**found, **config.declared}})
        check_merge_query(declared, schema)
    return found


def check_insert_query(config: TableConfig) -> Mapping[str, str]:
    """Return the columns that a table's ``insert_query`` gives, with their types; they become declared columns.

    Nothing is written. The rows have the declared ``source`` columns; keys beyond them are not known here.

    Raises:
        InvalidRequest: No query, or one that this table cannot use, and why.
        Unavailable: No process for it can be started.
    """
    if config.insert_query is None:
        raise InvalidRequest(f"table {config.name} has no insert_query to check")
    if not config.source:
        raise InvalidRequest(
            f"table {config.name} has an insert_query and no source columns: declare what {ROWS_VIEW} has, "
            "so that the query can be checked"
        )
    found = _check_query(config.insert_query, config.source, what=INSERT_QUERY)
    columns = OutputRules(config, config.declared, widens=False).read(found.columns)
    return {column.name: column.sql_type for column in columns}


def check_view_query(config: TableConfig, source_schema: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns that a view's query gives, with their types; they become declared columns of the view.

    Nothing is written. The rows have the columns that the source has now.

    Args:
        config: The whole configuration of the view.
        source_schema: Column to SQL type of the source, logged and declared.

    Raises:
        InvalidRequest: No view, or a query that it cannot use, and why.
        Unavailable: No process for it can be started.
    """
    if config.view_query is None:
        raise InvalidRequest(f"table {config.name} has no {VIEW_QUERY} to check")
    if not source_schema:
        raise InvalidRequest(
            f"table {config.view_of} has no columns yet, so that a query over them cannot be checked: declare those "
            "that the view needs (icedb table alter --column NAME:TYPE), or send first events"
        )
    found = _check_query(config.view_query, source_schema, what=VIEW_QUERY)
    columns = OutputRules(config, config.declared, VIEW_QUERY).read(found.columns)
    return {column.name: column.sql_type for column in columns}


def check_merge_query(config: TableConfig, schema: Mapping[str, str]) -> None:
    """Check a table's ``merge_query`` before the table gets it; nothing is read or written.

    Args:
        config: The configuration that the table will have.
        schema: Columns that the log has already, if the table exists; declared ones come on top.

    Raises:
        InvalidRequest: No query, one that does not fit, or types that must be known for that are not declared.
        Unavailable: No process for it can be started.
    """
    if config.merge_query is None:
        raise InvalidRequest(f"table {config.name} has no merge_query to check")
    known = {**config.declared, **schema}
    for column in dict.fromkeys((*(field.column for field in config.partition), *config.sort)):
        if column not in known:
            raise InvalidRequest(
                f"table {config.name}: a merge_query can only be checked if the type of column {column!r}, by which "
                f"data files are laid out, is known: declare it (--column {column}:TYPE), and every other one that "
                "the query names"
            )
    check_row_change(config, known, RowChange("merge_query", config.merge_query))


def check_row_change(config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
    """Check a change against a table; nothing is read or written.

    Raises:
        InvalidRequest: The SQL is wrong, reaches beyond its view, drops a partition or sort column, adds a column, or
            changes a type.
        Unavailable: No process for it can be started.
    """
    require_known_types(config, schema)
    try:
        with SqlProcess(CHECK_LIMITS) as process:
            read_change(process, config, schema, change)
    except QueryProblem as problem:
        raise InvalidRequest(f"table {config.name}: {WORDS[change.kind]}: {problem}") from problem


def read_change(
    process: SqlProcess, config: TableConfig, schema: Mapping[str, str], change: RowChange
) -> tuple[OutputColumn, ...]:
    """Check a change in a process; return the columns that a query gives, and for a deletion those that it names.

    Raises:
        InvalidRequest: Not the table's columns and types.
        QueryProblem: DuckDB cannot bind it, or it says more than it may.
    """
    view, what = VIEWS[change.kind], WORDS[change.kind]
    if change.kind == "delete":
        found = check_row_condition(process, change.sql, schema)
        return tuple(OutputColumn(name, kind, kind) for name, kind in schema.items() if name.lower() in found.named)
    found = process.check(change.sql, schema, relation=view, kind="repeatable")
    max_columns = max(len(schema), FlushUnitLimits().table_columns)
    return OutputRules(config, schema, what, max_columns, is_closed=True).read(found.columns)


def check_row_condition(process: SqlProcess, condition: str, schema: Mapping[str, str]) -> CheckedSql:
    """Check that a text is one condition over the columns of a row. Raises InvalidRequest, QueryProblem."""
    found = process.check(condition, schema or {"nothing": "BIGINT"}, relation=ROWS_VIEW, kind="condition")
    kind = found.columns[0][1]
    if kind not in ("BOOLEAN", '"NULL"'):
        raise InvalidRequest(f"the condition is {kind}, not BOOLEAN: write a comparison")
    return found


def check_reader_condition(condition: str, schema: Mapping[str, str], *, table: str) -> frozenset[str]:
    """Check that a text is one condition over the columns of a row, for a reader of a table.

    Returns the names in it that may be columns, in lower case.

    Args:
        condition: DuckDB's SQL.
        schema: Columns of the rows, with SQL types; at least one.
        table: Name of the table, for messages.

    Raises:
        InvalidRequest: With the first thing that is wrong.
    """
    from icedb_log.table.conditions import check_condition  # noqa: PLC0415 - sqlglot: tasks of plain merges do without

    check_condition(condition, schema, table=table)
    try:
        with SqlProcess(CHECK_LIMITS) as process:
            return check_row_condition(process, condition, schema).named
    except QueryProblem as problem:
        raise InvalidRequest(
            f"table {table}: where={condition[:120]!r}: {problem}; give one condition over the table's columns, as "
            "behind WHERE"
        ) from problem


def require_known_types(config: TableConfig, schema: Mapping[str, str]) -> None:
    """Raise InvalidRequest for a table with a column of a type that SQL would not get unchanged."""
    for name, sql_type in schema.items():
        if not is_known_type(sql_type):
            raise InvalidRequest(
                f"table {config.name}: column {name!r} is {sql_type}, and rows can only be changed by SQL in a table "
                f"whose columns are {', '.join(TYPE_NAMES)}"
            )


def _check_query(query: str, schema: Mapping[str, str], *, what: str) -> CheckedSql:
    try:
        with SqlProcess(CHECK_LIMITS) as process:
            return process.check(query, schema, relation=ROWS_VIEW, kind="query")
    except QueryProblem as problem:
        raise InvalidRequest(f"{what}: {problem}; write one SELECT over {ROWS_VIEW}") from problem

"""Queries over many tables that can read nothing else."""

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

import duckdb
from icedb_log.errors import InvalidRequest
from icedb_log.texts import quote_name

from icedb_client.duck import (
    OFFLINE,
    UNREADABLE,
    Rows,
    create_view,
    first_line,
    lock,
    open_duckdb,
    select_empty,
    unreadable,
    why_it_failed,
)
from icedb_client.reads import release_hold, take_hold
from icedb_client.snapshots import Snapshot

MAX_TABLES: Final = 100
_READING: Final = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_UNKNOWN_TABLE: Final = re.compile(r"Catalog Error: Table with name (?P<name>.+?) does not exist!", re.DOTALL)


def find_snapshots(sql: str, read: Callable[[str], Snapshot]) -> dict[str, Snapshot]:
    """Return the snapshot of each table that a query names, by name.

    The query is bound, not run, on a connection that can open no file: DuckDB says which names are tables (and not
    columns, aliases or parts of the query itself).

    Args:
        sql: The query.
        read: Returns the snapshot of a table.

    Raises:
        InvalidRequest: Not SQL, more than one statement, or one that does not only read tables.
        NotFound: Whatever ``read`` raises.
    """
    found: dict[str, Snapshot] = {}
    with duckdb.connect(config={**OFFLINE, "enable_external_access": "false"}) as con:
        _check_statement(con, sql)
        while len(found) <= MAX_TABLES:
            name = _first_unknown_table(con, sql, tables=found)
            if name is None:
                return found
            if name in found:
                raise InvalidRequest(f"the query names table {name!r} in a way that DuckDB does not resolve")
            found[name] = read(name)
            con.execute(f"CREATE TEMP VIEW {quote_name(name)} AS {select_empty(found[name])}")
    raise InvalidRequest(f"the query names more than {MAX_TABLES} tables")


def _check_statement(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidRequest(f"the query is not understood: {first_line(error)}") from error
    if len(statements) != 1:
        raise InvalidRequest(f"give one statement, not {len(statements)}")
    if statements[0].type not in _READING:
        raise InvalidRequest(
            f"{statements[0].type.name} is not allowed: tables are read only here; "
            "use SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN"
        )


def _first_unknown_table(con: duckdb.DuckDBPyConnection, sql: str, *, tables: Mapping[str, Snapshot]) -> str | None:
    try:
        con.sql(sql)
    except duckdb.PermissionException as error:
        raise InvalidRequest(
            f"a query reads the warehouse's tables and nothing else ({first_line(error)}); "
            "for other files use Snapshot.duckdb with a connection of your own"
        ) from error
    except duckdb.Error as error:
        match = _UNKNOWN_TABLE.match(str(error))
        if match is None:
            empty = next((name for name, snapshot in tables.items() if snapshot.last_commit_ms is None), None)
            if empty is not None:
                declared = ", ".join(tables[empty].schema)
                raise InvalidRequest(
                    f"table {empty!r} has no columns at this time{f' but {declared}' if declared else ''}: nothing was "
                    f"committed to it yet. Events that wait show in `icedb status {empty}`, and those that could not "
                    f"be committed in `icedb quarantine list {empty}`. DuckDB says: {first_line(error)}"
                ) from error
            raise InvalidRequest(f"the query is refused: {first_line(error)}") from error
        return match["name"].lower()  # as DuckDB, which does not tell cases apart
    return None


def query_one(snapshot: Snapshot, sql: str) -> Rows:
    """See :meth:`Snapshot.sql`."""

    def read(name: str) -> Snapshot:
        if name != snapshot.table:
            raise InvalidRequest(
                f"the query names {name[:80]!r}: this snapshot is of table {snapshot.table!r} alone; "
                "Client.query reads several"
            )
        return snapshot

    return run(sql, find_snapshots(sql, read))


def run(sql: str, snapshots: Mapping[str, Snapshot]) -> Rows:
    """Run a checked query on a connection of its own that can open the files of these snapshots and nothing else.

    Raises:
        InvalidRequest: DuckDB refuses it; its own words.
        Unavailable: A data file could not be read.
    """
    with ExitStack() as undo:
        con = undo.enter_context(open_duckdb())
        releasing = undo.enter_context(ExitStack())
        leases = []
        for snapshot in snapshots.values():
            hold = take_hold(snapshot)
            releasing.callback(release_hold, snapshot, hold)
            if hold is not None:
                leases.append(hold)
            create_view(con, snapshot, view=snapshot.table)
        lock(con, [uri for snapshot in snapshots.values() for uri in snapshot.files.uris])
        try:
            relation = con.sql(sql)
        except UNREADABLE as error:
            raise unreadable(error) from error
        except duckdb.Error as error:
            raise InvalidRequest(f"the query failed: {why_it_failed(error)}") from error
        undo.pop_all()
        return Rows(relation, connection=con, leases=leases, releasing=releasing)

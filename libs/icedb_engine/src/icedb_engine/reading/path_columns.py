"""Columns of a data file that the table does not have: writers of other releases repeat values of the path in them.

What repeats the path says nothing new and may be left out when rows are written anew. Anything else is data: it must
never vanish silently.
"""

from pathlib import Path
from typing import Any

import duckdb
from icedb_log.errors import SchemaConflict
from icedb_log.keys import TablePaths
from icedb_log.table.partition_path import decode_partition_value

from icedb_engine.sql import quote_name, quote_text


def require_path_values(
    engine: Any, file: Path, column: str, sql_type: str, *, paths: TablePaths, data_key: str
) -> None:
    """See that a column holds nothing but NULL and the value that the file's path has for it.

    Args:
        engine: DuckDB, which may read the file.
        file: The file's content.
        column: A column that the table does not have.
        sql_type: Its type in the file: engines that read a path guess one, ``0123`` becomes a number.
        paths: Keys of the table.
        data_key: Key of the data file.

    Raises:
        SchemaConflict: It holds something else; names the file and the column.
    """
    name, scan = quote_name(column), f"read_parquet({quote_text(str(file))}, hive_partitioning = false)"
    is_odd = f"{name} IS NOT NULL"
    for text in _path_texts(paths, data_key, column):
        value = quote_text(text)
        is_odd += f" AND CAST({name} AS VARCHAR) <> {value}"
        is_odd += f" AND {name} IS DISTINCT FROM TRY_CAST({value} AS {sql_type})"
    try:
        found = engine.execute(f"SELECT 1 FROM {scan} WHERE {is_odd} LIMIT 1").fetchone()  # noqa: S608 - all quoted
    except (duckdb.ConversionException, duckdb.BinderException):
        found = (1,)  # no value of the path is like these
    if found is not None:
        raise SchemaConflict(
            f"table {paths.name}: column {column!r} is {sql_type} in data file {data_key}, but the table has no such "
            "column, and its values are not those of the file's path: send one batch with that column, which adds it "
            "to the table, or rewrite that file with the table's columns"
        )


def _path_texts(paths: TablePaths, data_key: str, column: str) -> set[str]:
    """Return the value that the path has for a column, as it stands there and decoded; nothing if it has none."""
    texts: set[str] = set()
    for folder in paths.partition_of(data_key).split("/"):
        name, separator, encoded = folder.partition("=")
        if separator and name.lower() == column.lower():
            texts |= {encoded, decode_partition_value(encoded)}
    return texts

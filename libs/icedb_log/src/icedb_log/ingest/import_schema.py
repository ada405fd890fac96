"""Which imported files fit a table's schema, and what the schema is with them. Pure.

The rule is that of batches (``docs/types.md``), by the types of columns instead of values: the log's schema and the
declared columns come first, then the files in the order of their URLs. A file that does not fit is refused, whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.ingest.import_jobs import InspectedFile, RefusedFile
from icedb_log.table.table_config import TableConfig, check_column_name

MAX_TABLE_COLUMNS: Final = 2000
"""As for batches."""


@dataclass(frozen=True, slots=True)
class SettledFiles:
    """Files that fit, files that do not, and the schema of the table with the former."""

    files: tuple[InspectedFile, ...]
    refused: tuple[RefusedFile, ...]
    schema: Mapping[str, str]


def settle_files(files: Sequence[InspectedFile], *, schema: Mapping[str, str], config: TableConfig) -> SettledFiles:
    """Return which files fit, one after the other, and the schema with them.

    Args:
        files: What was inspected.
        schema: Column to SQL type as the log knows it.
        config: Of the table: declared columns, evolution, partition fields.
    """
    grown = dict(schema)
    known = {**schema, **{name: sql_type for name, sql_type in config.declared.items() if name not in schema}}
    spelling = {name.lower(): name for name in known}
    fitting: list[InspectedFile] = []
    refused: list[RefusedFile] = []
    for file in files:
        reason = _find_problem(file, known=known, spelling=spelling, config=config)
        if reason is not None:
            refused.append(RefusedFile(file.source.url, reason))
            continue
        fitting.append(file)
        for name, sql_type in file.columns.items():
            known.setdefault(name, sql_type)
            grown.setdefault(name, sql_type)
            spelling.setdefault(name.lower(), name)
    return SettledFiles(tuple(fitting), tuple(refused), grown)


def _find_problem(
    file: InspectedFile, *, known: Mapping[str, str], spelling: Mapping[str, str], config: TableConfig
) -> str | None:
    reserved = {field.name.lower(): field for field in config.partition if field.name != field.column}
    own_spelling: dict[str, str] = {}
    for name, sql_type in file.columns.items():
        try:
            check_column_name(name)
        except ValueError as error:
            return str(error)
        other = own_spelling.setdefault(name.lower(), spelling.get(name.lower(), name))
        if other != name:
            return (
                f"columns {other!r} and {name!r} differ only in case, which query engines cannot tell apart: rename it "
                "in the file"
            )
        if name.lower() in reserved:
            return (
                f"column {name!r} is named like the partition {reserved[name.lower()]}: readers of Hive partitions "
                "would take one for the other; rename it in the file"
            )
        problem = _find_type_problem(name, sql_type, known=known, config=config)
        if problem is not None:
            return problem
    if len(spelling.keys() | own_spelling.keys()) > MAX_TABLE_COLUMNS:
        return f"with its columns the table would have more than {MAX_TABLE_COLUMNS}: leave columns out"
    return None


def _find_type_problem(name: str, sql_type: str, *, known: Mapping[str, str], config: TableConfig) -> str | None:
    if config.evolution == "strict" and name not in config.declared:
        return f"column {name!r} is not declared, and the table's evolution is strict: leave it out of the file"
    wanted = known.get(name, sql_type)
    if wanted == sql_type:
        return None
    return (
        f"column {name!r} is {wanted} in the table (or in a file before it) and {sql_type} in this file: an import "
        "does not rewrite; send it with `icedb ingest`, or write the file with the table's type"
    )

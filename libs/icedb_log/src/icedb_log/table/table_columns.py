"""Which columns a table has for those who read it: conditions, answers and DataFrames know the same ones. Pure."""

from collections.abc import Mapping

from icedb_log.table.table_config import TableConfig


def unite_columns(logged: Mapping[str, str], config: TableConfig) -> dict[str, str]:
    """Return the columns of a table as readers see them: those of the log, then those that are only declared.

    Args:
        logged: Column to SQL type, as a snapshot has it.
        config: Of the table; a type that is declared and not in the log yet changes nothing.
    """
    spelling = {name.lower() for name in logged}
    return {**logged, **{name: kind for name, kind in config.declared.items() if name.lower() not in spelling}}

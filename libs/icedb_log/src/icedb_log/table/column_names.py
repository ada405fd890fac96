"""Which names the columns of a table have, and which a new one may get: for batches, imports and queries. Pure.

Who spells a name first is right: query engines do not tell names by their case. What is wrong is said without a remedy,
which depends on where the column comes from.
"""

from collections.abc import Iterable
from copy import copy
from typing import Final, Self

from icedb_log.table.promoted_paths import spell_path
from icedb_log.table.table_config import TableConfig, check_column_name

MAX_TABLE_COLUMNS: Final = 2000


class ColumnNames:
    """The names of a table's columns, each in one spelling.

    Args:
        config: Of the table.
        names: Of the columns that it has, those that came first first.
    """

    def __init__(self, config: TableConfig, names: Iterable[str] = ()) -> None:
        self._partitions = {field.name.lower(): field for field in config.partition if field.name != field.column}
        self._promoted = {column.lower(): path for column, path in config.promoted.items()}
        self._spelling: dict[str, str] = {}
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._spelling)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._spelling

    def add(self, name: str) -> str:
        """Add a name, unless it is there; return how it is spelt."""
        return self._spelling.setdefault(name.lower(), name)

    def plus(self, names: Iterable[str]) -> Self:
        """Return these names and some more."""
        more = copy(self)
        more._spelling = dict(self._spelling)  # noqa: SLF001 - of the same class
        for name in names:
            more.add(name)
        return more

    def find_problem(self, name: str) -> str | None:
        """Return why no column of the table can have a name; ``None`` if one can."""
        try:
            check_column_name(name)
        except ValueError as error:
            return str(error)
        partition = self._partitions.get(name.lower())
        if partition is not None:
            return (
                f"column {name!r} is named like the partition {partition}: readers of Hive partitions would take one "
                "for the other"
            )
        path = self._promoted.get(name.lower())
        if path is not None:
            return (
                f"column {name!r} is promoted: its values are those of {spell_path(path)}, and no others"
                if path
                else f"column {name!r} was promoted, and nothing fills it any more"
            )
        return None

    def find_case_problem(self, name: str) -> str | None:
        """Return that a name is there in another spelling; ``None`` if it is not."""
        other = self._spelling.get(name.lower(), name)
        if other == name:
            return None
        return f"columns {other!r} and {name!r} differ only in case, which query engines cannot tell apart"

"""Columns that became wider: what the log says of them, and what a commit may change (rule S2). Pure.

A schema line can never change a type: existing readers refuse a table whose schema lines disagree. So each schema
line goes on saying the *logged* type, the one that the log had first, and the wider type stands beside it, in the
metadata line, with the time of the widening: older data files may be narrow. What readers and jobs work with is the
*effective* type: the wider one where there is one.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from icedb_log.errors import SchemaConflict
from icedb_log.model import EMPTY, FileMarker, LogFile, Widening
from icedb_log.table.table_config import WIDENINGS, TableConfig

_NARROW: Final = frozenset(narrow for narrow, _ in WIDENINGS)


@dataclass(frozen=True, slots=True)
class LoggedSchema:
    """The schema of a table as its log has it.

    Attributes:
        logged: Column to SQL type, the union of all schema lines, in order of appearance.
        widened: Columns of ``logged`` that became wider.
        inexact: Columns of ``logged`` of whose live values it is not proven what :func:`columns_to_prove` says: true
            where it is known to be false (S2). Of every other one it is proven.
    """

    logged: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    widened: Mapping[str, Widening] = field(default_factory=lambda: EMPTY)
    inexact: Mapping[str, bool] = field(default_factory=lambda: EMPTY)

    @property
    def effective(self) -> Mapping[str, str]:
        """Column to SQL type as readers and jobs take it."""
        if not self.widened:
            return self.logged
        return {**self.logged, **{column: widening.sql_type for column, widening in self.widened.items()}}


def is_widening(narrow: str, wide: str) -> bool:
    """Return whether a column of one type may become one of the other."""
    return (narrow, wide) in WIDENINGS


def find_bad_widening(logged: Mapping[str, str], widened: Mapping[str, Widening]) -> str | None:
    """Return what is wrong with the widened columns of one log file, in words; ``None`` if nothing is."""
    for column, (wide, _) in widened.items():
        narrow = logged.get(column)
        if narrow is None:
            return f"column {column[:80]!r} is widened to {wide[:20]}, but the schema line does not name it"
        if not is_widening(narrow, wide):
            return f"column {column[:80]!r} is {narrow[:20]} by the schema line, which cannot become {wide[:20]}"
    return None


def state_inexact(
    schema: LoggedSchema,
    markers: Iterable[FileMarker],
    *,
    carried: Iterable[LogFile] = (),
    looked_up: Iterable[str] = (),
) -> dict[str, bool]:
    """Return what a commit does not prove of its columns (S2). Pure.

    Args:
        schema: Of the commit.
        markers: Its new data files.
        carried: Log files of which it lists data files as live, too.
        looked_up: Columns of which it is known, from other live data files, that a value would change.
    """
    columns = columns_to_prove(schema.logged) - schema.widened.keys()
    new = [None if marker.inexact is None else dict.fromkeys(marker.inexact, True) for marker in markers]
    old = [(log.schema.keys(), log.inexact) for log in carried]
    found = [(columns, dict.fromkeys(looked_up, True))]
    return unite_inexact([*((columns, each) for each in new), *old, *found], columns)


def unite_inexact(
    said: Iterable[tuple[AbstractSet[str], Mapping[str, bool] | None]], columns: AbstractSet[str]
) -> dict[str, bool]:
    """Return the columns without proof; true for those of which the opposite is certain.

    Args:
        said: Columns that some data files can have, with what is said of them; ``None``: nothing.
        columns: All that are asked for.
    """
    united: dict[str, bool] = {}
    for names, inexact in said:
        for column in columns & (names if inexact is None else inexact.keys()):
            united[column] = united.get(column, False) or (inexact is not None and inexact[column])
    return united


def columns_to_prove(schema: Mapping[str, str]) -> set[str]:
    """Return the columns of which a commit says whether it proves something of their values (S2).

    Of one that could become wider: that no value would change. Of a DOUBLE: that every data file has it as a DOUBLE,
    and that no footer gives bounds for values among which there is NaN.
    """
    return {column for column, sql_type in schema.items() if sql_type in _NARROW or sql_type == "DOUBLE"}


def grow_schema(
    table: str, known: LoggedSchema, *, after: Mapping[str, str], config: TableConfig, since_ms: int
) -> LoggedSchema:
    """Return what a commit has to log, so that readers see the schema ``after`` it.

    Args:
        table: Name of the table.
        known: What the log says now.
        after: Effective schema with the commit's rows.
        config: Says which columns may become wider.
        since_ms: From when on those are wide that become so now.

    Raises:
        SchemaConflict: A column vanished, came unasked, or changed its type in a way that the table's policy does not
            allow (S2).
    """
    for column, sql_type in known.effective.items():
        found = after.get(column)
        if found != sql_type and not _may_widen(column, sql_type, found, config):
            # S2: such a commit would make the table unreadable, or its rows something else than they were.
            raise SchemaConflict(
                f"table {table}: column {column!r} is {sql_type} in the log and {found} in a flush; evolution is "
                f"{config.evolution}, declared is {config.declared.get(column)}: a type only ever becomes wider, by "
                "evolution 'widen' or where the wider type is declared, and never that of a partition or sort column"
            )
    undeclared = [column for column in after if column not in known.logged and column not in config.declared]
    if undeclared and config.evolution == "strict":
        raise SchemaConflict(
            f"table {table}: column {undeclared[0]!r} is neither in the log nor declared, and evolution is strict; "
            "nothing was committed"
        )
    logged = {column: known.logged.get(column, sql_type) for column, sql_type in after.items()}
    widened = {
        column: known.widened.get(column) or Widening(sql_type, since_ms)
        for column, sql_type in after.items()
        if sql_type != logged[column]
    }
    return LoggedSchema(logged, widened)


def fixed_columns(config: TableConfig) -> frozenset[str]:
    """Return the columns whose type is fixed for good: data files are laid out by them."""
    return frozenset((*config.sort, *(field.column for field in config.partition)))


def _may_widen(column: str, narrow: str, wide: str | None, config: TableConfig) -> bool:
    if wide is None or not is_widening(narrow, wide) or column in fixed_columns(config):
        return False
    declared = config.declared.get(column)
    return config.evolution == "widen" if declared is None else declared == wide

"""Changes of a table's configuration after its creation: which are safe, and the compare-and-set that makes them.

A worker reads the configuration when its run begins, so that runs with the old and the new one overlap for a while.
What may change is what such runs do not depend on together:

* policies, bounds and sizes: whoever commits decides, and what one run refuses another cannot commit (I5);
* declared columns: one that is declared has the type that the log has already, or a wider one. A declaration may be
  taken back, but for columns that data files are laid out by;
* promoted paths: more come, behind those that are there, and one may be filled no more. Who knows fewer than the log
  commits nothing (S4), and a column is shown when every data file has it;
* what a TIMESTAMP's numbers count, and which times are plausible: they say how batches are read from then on. The unit
  of a BIGINT that data files are laid out by stays;
* grace periods of data files, orphans and seals, only upward. A run with the old, longer one would otherwise rely on
  what a run with the new one deletes (J1, W3, F4).

The grace period of log files stays as it is for good: the window in which a batch may be staged again follows from it
(I3). Made longer, it would admit a batch whose id has just been forgotten; made shorter, a flush that began before
would do so.
Partitions, sort order, ``insert_query``, ``view_query`` and ``source`` are what the data files of the table have in
common: they stay.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.commit.invariants import require_known_paths
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import union_schema
from icedb_log.log.widening import fixed_columns, is_widening
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.table_store import TableStore
from icedb_log.table.path_shares import PathShare
from icedb_log.table.promoted_paths import PROMOTE_SHARE, SEPARATOR, spell_path
from icedb_log.table.stored_config import change_config, require_usable
from icedb_log.table.table_config import MAX_COLUMN_NAME_BYTES, TIME_TRANSFORMS, TableConfig
from icedb_log.units import MINUTE_MS

FREE_FIELDS: Final = frozenset(
    {
        "audit_retention_ms",
        "evolution",
        "iceberg",
        "iceberg_bounds",
        "key_memory",
        "max_partitions_per_flush",
        "merge_fan_in",
        "merge_query",
        "on_bad_rows",
        "quarantine_retention_ms",
        "retention_ms",
        "row_group_rows",
        "target_file_bytes",
    }
)
"""What may be set to any value that is valid."""

RISING_FIELDS: Final = frozenset({"data_grace_ms", "orphan_age_ms", "seal_age_ms"})
"""What may only grow."""


def alter_table_config(table: TableStore, change: Mapping[str, Any], *, clock: Clock) -> TableConfig:
    """Change a table's configuration and return the new one. Idempotent: the same change again changes nothing.

    Args:
        table: The table.
        change: Field of :class:`~icedb_log.table.table_config.TableConfig` to its new value. ``declared`` holds only
            the columns that change: a type declares a column, ``None`` takes a declaration back; ``times`` only those
            fields of :class:`~icedb_log.table.time_columns.TimeColumn` that change, by column; ``promoted`` only paths
            that come, and with no keys columns that are filled no more; ``promoted_below`` whether frequent paths
            below some are to be promoted, by path.
        clock: This host's clock.

    Raises:
        InvalidRequest: The change is not one of those that are safe, or makes no valid configuration.
        NotFound: No such table.
        HaltError: The configuration or the log cannot be read.
        Unavailable: The store did not answer, or others kept changing the configuration.
        CommitConflict: Somebody else promotes paths at the same time; run again.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
    """

    def alter(config: TableConfig, info: ObjectInfo) -> TableConfig:
        require_usable(table, config, info)
        logged: Mapping[str, str] = {}
        if change.get("declared"):
            heads = Table.of(config, table, clock=clock).read_heads()
            require_known_paths(config, heads)  # else what the log has may be what somebody has just promoted
            logged = union_schema(table.name, heads.files).effective
        altered = plan_change(config, change, logged=logged)
        if altered.declared != config.declared:
            _check_declared(table, altered, logged)
        return altered

    return change_config(table, alter).state[0]


def plan_change(
    config: TableConfig, change: Mapping[str, Any], *, logged: Mapping[str, str] | None = None
) -> TableConfig:
    """Return a configuration with a change, as far as it can be judged without the log. Pure.

    Args:
        config: As it is.
        change: As of :func:`alter_table_config`.
        logged: The log's schema, if it is at hand: a declaration that it contradicts, so that nothing was ever
            committed by it, may be put right.

    Raises:
        InvalidRequest: As :func:`alter_table_config`.
    """
    fields: dict[str, Any] = dict(change)
    for name, value in change.items():
        if name in _PLANS and not isinstance(value, Mapping):
            raise InvalidRequest(f"table {config.name}: {name}: give what changes by column, not {value!r:.80}")
        plan = _PLANS.get(name)
        if plan is not None:
            fields[name] = plan(config, value, logged or {})
        elif name not in FREE_FIELDS | RISING_FIELDS and value != getattr(config, name, None):
            raise InvalidRequest(f"table {config.name}: {_describe_fixed(name)}")
    gone = config.declared.keys() - fields.get("declared", config.declared).keys()
    if gone:
        times: Mapping[str, Any] = fields.get("times", config.times)
        fields["times"] = {column: time for column, time in times.items() if column not in gone}
    altered = TableConfig.create(**{**dict(config), **fields})
    for name in sorted(RISING_FIELDS & change.keys()):
        before, after = getattr(config, name), getattr(altered, name)
        if after < before:
            raise InvalidRequest(
                f"table {config.name}: {name} is {before / MINUTE_MS:g} min and cannot become {after / MINUTE_MS:g} "
                "min: runs that began before rely on it; it may only grow"
            )
    return altered


def _describe_fixed(name: str) -> str:
    free = ", ".join(sorted(FREE_FIELDS | RISING_FIELDS))
    return f"{name} cannot be changed after the table was created; what can: declared, promoted, times, {free}"


def promote_frequent_paths(table: TableStore, shares: Sequence[PathShare], *, clock: Clock) -> TableConfig:
    """Promote paths that are frequent enough and may be promoted by themselves; return the configuration then.

    Idempotent: who comes second finds the paths promoted. A column that was taken back is there still, so its path does
    not come again.

    Args:
        table: The table.
        shares: What stands in some of its rows.
        clock: This host's clock.

    Raises:
        IceDBError: As :func:`alter_table_config`.
    """

    def promote(config: TableConfig, info: ObjectInfo) -> TableConfig:
        require_usable(table, config, info)
        heads = Table.of(config, table, clock=clock).read_heads()
        require_known_paths(config, heads)
        logged = union_schema(table.name, heads.files).effective
        found = choose_paths(config, shares, logged=logged)
        change = {
            "declared": {column: each.sql_type for column, each in found.items()},
            "promoted": {column: each.path for column, each in found.items()},
        }
        return plan_change(config, change, logged=logged) if found else config

    return change_config(table, promote).state[0]


def choose_paths(
    config: TableConfig, shares: Sequence[PathShare], *, logged: Mapping[str, str]
) -> dict[str, PathShare]:
    """Return which paths are to be promoted by themselves, by the names of their columns. Pure.

    Args:
        config: Of the table.
        shares: What stands in some of its rows.
        logged: The log's schema.
    """
    taken = {column.lower() for column in (*config.declared, *config.promoted, *logged)}
    taken |= {field.name.lower() for field in config.partition}
    known = set(config.promoted.values())
    found: dict[str, PathShare] = {}
    for each in sorted(shares, key=lambda one: (-one.share, one.path)):
        column = SEPARATOR.join(each.path)
        is_below = any(each.path[: len(path)] == path for path in config.promoted_below)
        if not is_below or each.sql_type is None or each.share < PROMOTE_SHARE or each.path in known:
            continue
        if column.lower() in taken or len(column.encode()) > MAX_COLUMN_NAME_BYTES:
            continue
        if len(found) >= config.promote_room:
            break
        found[column] = each
        taken.add(column.lower())
    return found


def _plan_promoted(
    config: TableConfig, change: Mapping[str, Sequence[str]], logged: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    promoted = dict(config.promoted)
    spelling = {column.lower(): column for column in (*config.declared, *logged)}
    for column, path in change.items():
        known, there = promoted.get(column), spelling.get(column.lower())
        if not isinstance(path, list | tuple):
            raise InvalidRequest(f"table {config.name}: promoted: give the keys of a path as a list, not {path!r:.80}")
        if known is None and not path:
            raise InvalidRequest(
                f"table {config.name}: column {column!r} is not promoted: `icedb table show` lists them"
            )
        if known is None and there is not None:
            raise InvalidRequest(
                f"table {config.name}: it has column {there!r} already: give the promoted one another name, … as NAME"
            )
        if path and known is not None and known != tuple(path):
            was = f"is promoted from {spell_path(known)}" if known else "was promoted once, and newer rows lack it"
            raise InvalidRequest(f"table {config.name}: column {column!r} {was}: give another name, … as NAME")
        if not path and column in fixed_columns(config):
            raise InvalidRequest(
                f"table {config.name}: the data files are laid out by column {column!r}: it stays filled"
            )
        promoted[column] = tuple(path)
    return promoted


def _plan_declared(config: TableConfig, change: Mapping[str, str | None], logged: Mapping[str, str]) -> dict[str, str]:
    declared = dict(config.declared)
    for column, sql_type in change.items():
        if column in config.promoted and sql_type != declared.get(column):
            raise InvalidRequest(
                f"table {config.name}: column {column!r} is promoted as {declared.get(column)} for good: the values "
                "that are there were taken as that"
            )
        is_mended = sql_type is not None and sql_type == logged.get(column)
        if column in fixed_columns(config) and sql_type != declared.get(column) and not is_mended:
            raise InvalidRequest(
                f"table {config.name}: the data files are laid out by column {column!r}: its declaration is "
                f"{declared.get(column)} for good"
            )
        if sql_type is None:
            declared.pop(column, None)
        else:
            declared[column] = sql_type
    return declared


def _plan_promoted_below(
    config: TableConfig, change: Mapping[tuple[str, ...], bool], _logged: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    kept = [path for path in config.promoted_below if change.get(path, True)]
    return (*kept, *(path for path, is_on in change.items() if is_on and path not in kept))


def _plan_times(
    config: TableConfig, change: Mapping[str, Mapping[str, Any]], _logged: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    times = {column: time.model_dump() for column, time in config.times.items()}
    laid_out = {field.column for field in config.partition if field.transform in TIME_TRANSFORMS}
    for column, fields in change.items():
        if not isinstance(fields, Mapping):
            raise InvalidRequest(f"table {config.name}: times: give what changes by column, not {fields!r:.80}")
        before = times.get(column, {})
        is_laid_out = column in laid_out and config.declared.get(column) == "BIGINT"
        is_changed = fields.get("unit", before.get("unit")) != before.get("unit")
        if is_changed and (is_laid_out or column in config.promoted):
            why = f"the data files are laid out by column {column!r}"
            if not is_laid_out:
                why = f"column {column!r} is promoted, and the values that are there were taken by it"
            raise InvalidRequest(f"table {config.name}: {why}: its unit is {before.get('unit')} for good")
        times[column] = {**before, **fields}
    return times


_PLANS: Final[Mapping[str, Callable[[TableConfig, Any, Mapping[str, str]], Any]]] = {
    "declared": _plan_declared,
    "promoted": _plan_promoted,
    "promoted_below": _plan_promoted_below,
    "times": _plan_times,
}
"""Fields of which only what changes is given."""


def _check_declared(table: TableStore, altered: TableConfig, logged: Mapping[str, str]) -> None:
    spelling = {column.lower(): column for column in logged}
    for column, sql_type in altered.declared.items():
        name = spelling.get(column.lower(), column)
        found = logged.get(name, sql_type)
        if name != column or (found != sql_type and not is_widening(found, sql_type)):
            raise InvalidRequest(
                f"table {table.name}: column {column!r} cannot be declared {sql_type}: the log has {name!r} as "
                f"{found}; declare it as it is, or wider (BIGINT as DOUBLE, DATE as TIMESTAMP)"
            )

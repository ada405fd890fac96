"""The types of a flush's columns: what the log and the configuration say, and what several units found. Pure."""

from collections.abc import Mapping, Sequence

from icedb_log.errors import SchemaConflict
from icedb_log.jobs import FlushJob
from icedb_log.table.table_config import WIDENINGS, TableConfig

from icedb_engine.reading.json_types import Kind, SchemaBuilder, infer_type


def settle_types(known: Mapping[str, str], found: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Return the types of all columns after several units found new ones, each on its own.

    The first unit wins a conflict, as the first batch does inside a unit; a later one that differs in type, or in
    the case of the name, has to run again with what is returned.

    Args:
        known: The types that the units were given.
        found: New columns and kinds of values of each unit, in the order of the units.
    """
    builder = SchemaBuilder(known)
    spelling = {name.lower(): name for name in known}
    for columns in found:
        for name, kinds in columns.items():
            if spelling.setdefault(name.lower(), name) == name and builder.find_clash(name, Kind(kinds)) is None:
                builder.add(name, Kind(kinds))
    return {**known, **{name: infer_type(kinds) or "" for name, kinds in builder.new_kinds.items()}}


def find_declared_wider(config: TableConfig, schema: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that the configuration declares with a wider type than the table has so far.

    That needs no proof: whoever declares it accepts that integers beyond 2^53 lose digits.
    """
    if config.evolution != "widen":
        return {}
    fixed = {field.column for field in config.partition}.union(config.sort)
    return {
        name: wide
        for name, wide in config.declared.items()
        if name not in fixed and (schema.get(name), wide) in WIDENINGS
    }


def unite_known(job: FlushJob) -> dict[str, str]:
    """Return the log's schema with the declared columns. Raises SchemaConflict."""
    spelling = {name.lower(): name for name in job.schema}
    for name, declared_type in job.config.declared.items():
        logged_name = spelling.get(name.lower(), name)
        logged_type = job.schema.get(logged_name, declared_type)
        if logged_name == name and find_declared_wider(job.config, job.schema).get(name) == declared_type:
            continue
        if (logged_name, logged_type) != (name, declared_type):
            raise SchemaConflict(
                f"table {job.paths.name}: the configuration declares {name!r} as {declared_type}, but the log has "
                f"{logged_name!r} as {logged_type}: declare it as the log has it, `icedb table alter {job.paths.name} "
                f"--column '{logged_name}:{logged_type}'` (for a time in a BIGINT the type is epoch_s, epoch_ms or "
                f"epoch_us); {job.paths.config_key} is as it was created"
            )
    return {**job.schema, **job.config.declared}

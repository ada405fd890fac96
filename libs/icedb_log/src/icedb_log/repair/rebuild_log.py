"""The log file of a rebuild: all that the log files that are left say, corrected by the plan (B3, S1, S2). Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from icedb_log.errors import InvariantViolated, SchemaConflict
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.fold import fold
from icedb_log.log.widening import LoggedSchema, is_widening
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.model import EMPTY, ColumnStats, FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.repair.footers import Footer
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_plan import RebuildPlan
from icedb_log.table.table_config import TableConfig

_EXTRA_KEY: Final = "rebuilt"
"""Unknown to every reader; merges carry it: a person can see that the table was rebuilt, and by which record."""


def stats_columns(config: TableConfig) -> tuple[str, ...]:
    """Return the columns of which markers have statistics."""
    return tuple(dict.fromkeys([*(field.column for field in config.partition), *config.sort]))


def build_rebuilt_log(
    evidence: RebuildEvidence, plan: RebuildPlan, *, rebuild_id: str, commit_id: str, now_ms: int
) -> LogFile:
    """Build the log file of a rebuild. It replaces every whole log file but seals (F4), and sorts behind all (S1).

    Args:
        evidence: What is left of the table.
        plan: What was decided.
        rebuild_id: Names the record.
        commit_id: Of this commit.
        now_ms: The committer's clock.

    Raises:
        SchemaConflict: Log files or data files disagree about the type of a column.
        InvalidRequest: A damaged log file has a name beyond the end of all time.
    """
    view = evidence.log.view
    # B3: behind what is lost, too: its horizon says that it was decided (F5).
    behind = [
        now_ms,
        *(name_ms(key) + 1 for key in (*(file.key for file in evidence.log.damaged), *evidence.fences.landed)),
    ]
    base = build_merge_log(
        view,
        merged=(),
        folded_log_keys=[file.key for file in view.files],
        commit_id=commit_id,
        now_ms=max(behind),
    )
    heads = [file.head for file in evidence.log.damaged if file.head is not None]
    schema = unite_schema(
        evidence, base, files=[key for key in (*sorted(plan.live), *sorted(plan.dead)) if key in evidence.footers]
    )
    return replace(
        base,
        schema=schema.logged,
        widened={name: wide for name, wide in schema.widened.items() if wide != schema.logged[name]},
        inexact=None,  # nobody has looked at the data files' values (S2)
        markers=tuple(_make_markers(evidence, plan, base)),
        batch_ids=tuple(sorted({batch_id for head in heads for batch_id in head.batch_ids})),
        refused_ids=tuple(sorted({batch_id for head in heads for batch_id in head.refused_ids})),
        contents={batch_id: known for head in heads for batch_id, known in head.contents.items()},
        horizon_ms=base.time_ms,  # B3: an older state is not known any more
        feed=plan.feed or base.feed,
        extra={**base.extra, _EXTRA_KEY: rebuild_id},
    )


def name_ms(log_key: str) -> int:
    """Return the time in the name of an object below ``_log``, unix ms; 0 if it is not the name of a log file."""
    digits = log_key.rpartition("/")[2].partition("_")[0]
    return int(digits) if len(digits) == 13 and digits.isascii() and digits.isdigit() else 0  # noqa: PLR2004 - wire


def _make_markers(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> Iterable[FileMarker]:
    known = {marker.path: marker for marker in base.markers}
    salvaged = evidence.markers
    columns = stats_columns(evidence.config)
    for path in sorted(plan.live):
        if path in evidence.unreadable:  # what a log file says of its size shows that it is damaged
            yield known.get(path) or salvaged[path]
            continue
        found = _make_marker(evidence, path, columns)
        old = known.get(path)
        # The footer knows best how many rows there are; what nobody says any more is kept as the log has it.
        stats = found.stats or (EMPTY if old is None else old.stats)
        yield (
            found
            if old is None
            else replace(
                old, size_bytes=found.size_bytes, row_count=_either(found.row_count, old.row_count), stats=stats
            )
        )
    for path in sorted(known.keys() | plan.dead):
        if path in plan.live:
            continue
        marker = known.get(path) or _make_marker(evidence, path, ())
        if marker.is_live:
            old = salvaged.get(path)
            tombstoned_ms = None if old is None else old.tombstoned_ms
            marker = replace(marker, tombstoned_ms=tombstoned_ms or base.time_ms, landed_ms=None)
        yield marker


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first


def _make_marker(evidence: RebuildEvidence, path: str, columns: Iterable[str]) -> FileMarker:
    footer = evidence.footers.get(path)
    if footer is None:
        unreadable = evidence.unreadable.get(path)
        if unreadable is None:  # named by a damaged log file, and not there
            return replace(evidence.markers[path], tombstoned_ms=None, landed_ms=None)
        return FileMarker(path, unreadable.info.size_bytes, unreadable.info.modified_ms)
    return FileMarker(
        path,
        footer.info.size_bytes,
        footer.info.modified_ms,
        row_count=footer.row_count,
        stats=_make_stats(footer, columns),
    )


def _make_stats(footer: Footer, columns: Iterable[str]) -> Mapping[str, ColumnStats]:
    stats: dict[str, ColumnStats] = {}
    for name in columns:
        bounds = footer.bounds.get(name)
        found = None if bounds is None else bounds.to_stats()
        if found is not None:
            stats[name] = found
    return stats or EMPTY


def unite_schema(evidence: RebuildEvidence, base: LogFile, *, files: Iterable[str]) -> LoggedSchema:
    """Return the schema: what log files say, then what data files have, the oldest first, and what is declared (S2).

    Raises:
        SchemaConflict: Two types of one column, neither of which becomes the other.
    """
    logged = dict(base.schema)
    widened = dict(base.widened)
    origin = dict.fromkeys(logged, "the log")
    heads = [(file.key, file.head) for file in evidence.log.damaged if file.head is not None]
    for key, head in heads:
        _unite(evidence.paths, head.schema, where=key, logged=logged, widened=widened, origin=origin)
        _unite(evidence.paths, head.widened, where=key, logged=logged, widened=widened, origin=origin)
    # Never a column of the table (flushes and imports refuse it): other writers' merges repeat the path in their files.
    of_paths = {each.name.lower() for each in evidence.config.partition if each.name.lower() != each.column.lower()}
    for path in sorted(files, key=lambda path: (evidence.footers[path].info.modified_ms, path)):
        found = evidence.footers[path].columns
        columns = {name: kind for name, kind in found.items() if name in logged or name.lower() not in of_paths}
        _unite(evidence.paths, columns, where=path, logged=logged, widened=widened, origin=origin)
    declared = evidence.config.declared
    _unite(evidence.paths, declared, where="the configuration", logged=logged, widened=widened, origin=origin)
    return LoggedSchema(logged, widened)


def _unite(
    paths: TablePaths,
    columns: Mapping[str, str],
    *,
    where: str,
    logged: dict[str, str],
    widened: dict[str, str],
    origin: dict[str, str],
) -> None:
    for name, sql_type in columns.items():
        known = logged.setdefault(name, sql_type)
        first = origin.setdefault(name, where)
        if sql_type in (known, widened.get(name)):
            continue
        if is_widening(known, sql_type):
            widened[name] = sql_type
        elif is_widening(sql_type, known) and first != "the log":
            logged[name], widened[name] = (
                sql_type,
                known,
            )  # the narrow files are the older ones, whatever their age says
        elif not is_widening(sql_type, known):
            raise SchemaConflict(
                f"table {paths.name}: column {name!r} is {known} in {first} and {sql_type} in {where}: a log that "
                "names both cannot be read; move one of the two away (and its rows with it), then rebuild again"
            )


def require_rebuilt(paths: TablePaths, evidence: RebuildEvidence, plan: RebuildPlan, log: LogFile, *, key: str) -> None:
    """A rebuilt log says what was decided: beside the log files that it replaces, and without them (S1, M1)."""
    files = evidence.log.view.files
    new = ListedLogFile(key, "", evidence.store_now_ms, 0, log)
    dead = {tombstone.path for tombstone in log.log_tombstones}
    for others in (files, tuple(file for file in files if file.key not in dead)):
        snapshot = fold(LogView(paths.name, (*others, new), evidence.store_now_ms))
        wrong = sorted({marker.path for marker in snapshot.live} ^ plan.live)
        if wrong:
            raise InvariantViolated(
                f"table {paths.name}: {wrong[0]} would not be what was decided (B3); {len(wrong)} differ"
            )
    if any(file.key >= key for file in files if not file.log.is_seal) or parse_log_key(key).time_ms != log.time_ms:
        raise InvariantViolated(f"table {paths.name}: {key} does not sort behind the log files that it replaces (S1)")

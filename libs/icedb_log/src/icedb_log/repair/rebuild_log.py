"""The log file of a rebuild: all that the log files that are left say, corrected by the plan (B3, S1, S2). Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from icedb_log.errors import InvariantViolated, SchemaConflict
from icedb_log.keys import TablePaths, parse_log_key
from icedb_log.log.fold import fold
from icedb_log.log.state import LogState
from icedb_log.log.widening import LoggedSchema, is_widening
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.parquet.footer import Footer
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_plan import RebuildPlan

_EXTRA_KEY: Final = "rebuilt"
"""Unknown to every reader; merges carry it: a person can see that the table was rebuilt, and by which record."""


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
    view = evidence.view
    # B3: behind what is lost, too: its horizon says that it was decided (F5).
    behind = (*(file.key for file in evidence.damaged), *evidence.fences.landed)
    base = build_merge_log(
        LogState.of(view),
        merged=(),
        folded_log_keys=[file.key for file in view.files],
        commit_id=commit_id,
        now_ms=max([now_ms, *(name_ms(key) + 1 for key in behind)]),
    )
    heads = [head for _, head in evidence.heads]
    schema = _unite_schema(evidence, plan, base)
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


def _make_markers(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> Iterator[FileMarker]:
    known = {marker.path: marker for marker in base.markers}
    columns = dict.fromkeys([*(field.column for field in evidence.config.partition), *evidence.config.sort])
    for path in sorted(plan.live):
        old, footer = known.get(path), evidence.footers.get(path)
        if footer is None:  # what a log file says of its size shows that it is damaged
            yield old or evidence.markers[path]
            continue
        found = _make_marker(evidence, path)
        bounds = ((name, footer.bounds.get(name)) for name in columns)
        stats = {name: each.to_stats() for name, each in bounds if each is not None}
        # The footer knows best how many rows there are; what nobody says any more is kept as the log has it.
        said = {name: each for name, each in stats.items() if each is not None} or (old or found).stats
        yield replace(old or found, size_bytes=found.size_bytes, row_count=found.row_count, stats=said)
    for path in sorted((known.keys() | plan.dead) - plan.live):
        marker = known.get(path) or _make_marker(evidence, path)
        if marker.is_live:
            salvaged = evidence.markers.get(path)
            tombstoned_ms = None if salvaged is None else salvaged.tombstoned_ms
            marker = replace(marker, tombstoned_ms=tombstoned_ms or base.time_ms, landed_ms=None)
        yield marker


def _make_marker(evidence: RebuildEvidence, path: str) -> FileMarker:
    """Return what is known of a data file that no log file is there to tell of."""
    found = evidence.footers.get(path) or evidence.unreadable.get(path)
    if found is None:  # named by a damaged log file, and not there
        return replace(evidence.markers[path], tombstoned_ms=None, landed_ms=None)
    rows = found.row_count if isinstance(found, Footer) else None
    return FileMarker(path, found.info.size_bytes, found.info.modified_ms, row_count=rows)


def _unite_schema(evidence: RebuildEvidence, plan: RebuildPlan, base: LogFile) -> LoggedSchema:
    """Return the schema: what log files say, then what data files have, the oldest first, and what is declared (S2).

    Raises:
        SchemaConflict: Two types of one column, neither of which becomes the other.
    """
    logged, widened = dict(base.schema), dict(base.widened)
    origin = dict.fromkeys(logged, "the log")
    # Never a column of the table (flushes and imports refuse it): other writers' merges repeat the path in their files.
    of_paths = {each.name.lower() for each in evidence.config.partition if each.name.lower() != each.column.lower()}
    files = (evidence.footers[path] for path in (plan.live | plan.dead) & evidence.footers.keys())
    said = (
        *((key, columns) for key, head in evidence.heads for columns in (head.schema, head.widened)),
        *((f.info.key, f.columns) for f in sorted(files, key=lambda f: (f.info.modified_ms, f.info.key))),
        ("the configuration", evidence.config.declared),
    )
    for where, columns in said:
        for name, sql_type in columns.items():
            if where in evidence.footers and name.lower() in of_paths and name not in logged:
                continue
            known = logged.setdefault(name, sql_type)
            first = origin.setdefault(name, where)
            if sql_type in (known, widened.get(name)):
                continue
            if is_widening(known, sql_type):
                widened[name] = sql_type
            elif is_widening(sql_type, known) and first != "the log":
                # The narrow files are the older ones, whatever their age says.
                logged[name], widened[name] = sql_type, known
            elif not is_widening(sql_type, known):
                raise SchemaConflict(
                    f"table {evidence.paths.name}: column {name!r} is {known} in {first} and {sql_type} in {where}: a "
                    "log that names both cannot be read; move one of the two away (and its rows with it), then rebuild "
                    "again"
                )
    return LoggedSchema(logged, widened)


def require_rebuilt(paths: TablePaths, evidence: RebuildEvidence, plan: RebuildPlan, log: LogFile, *, key: str) -> None:
    """A rebuilt log says what was decided: beside the log files that it replaces, and without them (S1, M1)."""
    files = evidence.view.files
    new = ListedLogFile(key, "", evidence.view.store_now_ms, 0, log)
    dead = {tombstone.path for tombstone in log.log_tombstones}
    for others in (files, tuple(file for file in files if file.key not in dead)):
        snapshot = fold(LogView(paths.name, (*others, new), evidence.view.store_now_ms))
        wrong = sorted({marker.path for marker in snapshot.live} ^ plan.live)
        if wrong:
            raise InvariantViolated(
                f"table {paths.name}: {wrong[0]} would not be what was decided (B3); {len(wrong)} differ"
            )
    if any(file.key >= key for file in files if not file.log.is_seal) or parse_log_key(key).time_ms != log.time_ms:
        raise InvariantViolated(f"table {paths.name}: {key} does not sort behind the log files that it replaces (S1)")

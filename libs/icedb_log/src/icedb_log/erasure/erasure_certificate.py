"""The certificate of an erasure: what its record says, as a document for people (E6). Pure.

It contains what was erased as far as the condition and the keys of partitions say it: treat it accordingly.
"""

from datetime import UTC, datetime
from typing import Any, Final

from icedb_log.erasure.erasure_record import Erasure, ErasureTarget

PROVES: Final = (
    "Every row that was accepted before requested_at and for which the condition is true was removed from the table.",
    "Every object that is known to have held such rows, or that could not be read, is listed in objects.",
    "Each of them was absent from the object store at its gone_at and at checked_at.",
    "No log file names one of them any more: no statistics of them are left.",
    "At checked_at all data objects were listed, and those that no log file named were searched for such rows.",
    "None of these had any, but for rows that came after requested_at (not_covered.late).",
)

LIMITS: Final = (
    "Rows that were accepted after requested_at are not covered.",
    "Older versions of objects in a versioned bucket, replicas and backups are not covered: see to the bucket's rules.",
    "What readers copied before deleted_at, and logs of services, are not covered.",
    "What not_covered lists was left alone.",
    "A worker that stalled before deleted_at and uploads after checked_at leaves an object that no log file names.",
    "Nobody reads such an object, and the janitor deletes it after the table's orphan age.",
)


def certificate(erasure: Erasure) -> dict[str, Any]:
    """Return the certificate of an erasure, or how far it is, as JSON values. Times are ISO 8601 in UTC."""
    return {
        "format": erasure.format,
        "table": erasure.table,
        "id": erasure.erasure_id,
        "state": erasure.state,
        "condition": erasure.condition,
        "requested_by": erasure.requested_by,
        "note": erasure.note,
        "refusal": erasure.refusal,
        "requested_at": _time(erasure.requested_ms),
        "deleted_at": _time(erasure.deleted_ms),
        "checked_at": _time(erasure.checked_ms),
        "completed_at": _time(erasure.completed_ms),
        "clock": "the object store's",
        "rows_removed": erasure.row_count,
        "rows_removed_is_exact": erasure.is_row_count_exact,
        "commits": [
            {"log_file": run.log_key, "rows_removed": run.row_count, "data_files": len(run.files)}
            for run in erasure.runs
            if run.has_landed
        ],
        "objects": [_object(target) for target in erasure.targets],
        "not_covered": erasure.not_covered.model_dump(mode="json"),
        "proves": list(PROVES) if erasure.state == "complete" else [],
        "limits": list(LIMITS),
    }


def _object(target: ErasureTarget) -> dict[str, Any]:
    return {
        "key": target.key,
        "bytes": target.size_bytes,
        "rows": target.row_count,
        "reason": target.reason,
        "due_at": _time(target.due_ms),
        "gone_at": _time(target.gone_ms),
        "known_by": target.known_by,
    }


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""What became of a batch: staged, committed, quarantined, or unknown. Reads the store; blocking."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from icedb_log.clock import Clock, parse_uuid7_ms
from icedb_log.errors import NotFound
from icedb_log.keys import TablePaths
from icedb_log.object_store import ObjectStore
from icedb_service.readers import LogReaders

State = Literal["staged", "committed", "quarantined"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """Where a batch is.

    Attributes:
        state: ``staged``: durable, waits for a flush; ``committed``: its rows are live; ``quarantined``: it waits for
            a person.
        reason: Why it, or some of its rows, are in quarantine.
        quarantined_rows: Rows that wait in quarantine while the others are live; ``None`` if that is not known.
    """

    state: State
    reason: str | None = None
    quarantined_rows: int | None = None


class BatchStatuses:
    """Looks batches up. Thread-safe.

    Args:
        store: The object store.
        clock: For the readers of logs.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock) -> None:
        self._store = store
        self._readers = LogReaders(clock)
        self._lock = threading.Lock()

    def look_up(self, paths: TablePaths, batch_id: str) -> BatchStatus:
        """Return where a batch is. Costs up to two listings, a GET, and the log files that are not known yet.

        Raises:
            InvalidRequest: No batch has such an id.
            NotFound: No batch of this id is known any more, or none ever was.
            Unavailable: The store did not answer.
            HaltError: The log cannot be read.
        """
        parse_uuid7_ms(batch_id)
        # The order is the batch's own: staged before it is committed, so whoever left staging is in a log read later.
        if self._store.list_page(f"{paths.staging_prefix}{batch_id}.", limit=1).objects:
            return BatchStatus("staged")
        reason = self._read_reason(paths, batch_id)
        with self._lock:
            reader = self._readers.of_table(self._store, paths)
        is_committed = any(batch_id in file.log.batch_ids for file in reader.read().files)
        if is_committed:
            return BatchStatus("committed", _text(reason, "reason"), _number(reason, "rows"))
        if reason is not None:
            return BatchStatus("quarantined", _text(reason, "reason"), _number(reason, "rows"))
        raise NotFound(
            f"table {paths.name}: no batch {batch_id} is staged, in quarantine or in the log. It was never accepted, "
            "or it was committed longer ago than log files are kept"
        )

    def _read_reason(self, paths: TablePaths, batch_id: str) -> Mapping[str, Any] | None:
        try:
            value = orjson.loads(self._store.get(paths.quarantine_key(f"{batch_id}.json")).body)
        except NotFound:
            return None
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def _text(reason: Mapping[str, Any] | None, name: str) -> str | None:
    value = (reason or {}).get(name)
    return value if isinstance(value, str) else None


def _number(reason: Mapping[str, Any] | None, name: str) -> int | None:
    value = (reason or {}).get(name)
    return value if isinstance(value, int) else None

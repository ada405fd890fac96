"""A copy of a table: what the backup wrote of it, and how a new state takes the place of an old one.

``<root>/_icedb/backup/<table>.json``, beside the tables of the copy, says whose copy it is and what was written to it,
so that nothing is overwritten that anybody else has written. It goes ``copying -> switching -> whole``, by
compare-and-set.

Data files and what else never changes are put into place one by one: nobody asks for them before the log names them.
What changes together, the log above all, is put aside first (``_icedb/backup/<table>.new/``), and the record says what
is to be done. From then on the switch can be ended without the source, and the next backup from or to here does it.
While it lasts ``table.json`` is not there, and so no table: log files of two states are never folded together.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from icedb_log.clock import Clock, new_batch_id
from icedb_log.errors import CommitConflict, CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import check_table_name, parse_staged_key
from icedb_log.store.object_store import ObjectInfo, delete_or_raise, list_all
from icedb_log.store.records import create_claim, parse_record, replace_claim
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import decode_table_config
from icedb_log.warehouse import Warehouse

FOLDER: Final = "_icedb/backup"
_SWITCHED: Final = ("fence/", "erasures/", "imports/", "views/", "refused/", "rebuilds/", "pins/", "fields.json")
"""What is small and changes, below ``_icedb/`` of the table: it is taken over together with the log."""


class CopyRecord(BaseModel):
    """What the record of a copy says.

    Attributes:
        source: Whose copy it is: URL of a warehouse.
        state: ``copying``: the state of before is whole, and more lies beside it; ``switching``: the next one is being
            put in its place; ``whole``.
        incarnation: Of the table (T4).
        point_ms: What was acknowledged by then is in the copy, unix ms by the clock of the source's store.
        token: Another one with each write: no content, hence no ETag, comes back.
        log: The log files that the backup wrote, name to SHA-256.
        fences: SHA-256 of each fence that it wrote: whoever commits writes over one of them.
        staged: Key of each batch that waits in the source, to its key in the copy; empty: it is to be staged.
        puts: While it switches: keys that are taken over from what was put aside, in this order.
        deletes: While it switches: keys that are deleted before that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    token: str = ""
    source: str
    state: Literal["copying", "switching", "whole"] = "copying"
    incarnation: str = ""
    point_ms: int = 0
    log: dict[str, str] = {}
    fences: tuple[str, ...] = ()
    staged: dict[str, str] = {}
    puts: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


def digest(body: bytes) -> str:
    """Return what tells the content of an object that the backup wrote from another one."""
    return hashlib.sha256(body).hexdigest()


class CopiedTable:
    """The copy of one table. For one run at a time: a second one is noticed, and refused.

    Args:
        warehouse: Where the copy lies.
        name: Of the table.
        source: URL of the warehouse that it is a copy of.
        clock: For ids that no other run has.
    """

    def __init__(self, warehouse: Warehouse, name: str, *, source: str, clock: Clock) -> None:
        self.table: Final[TableStore] = warehouse.table(name)
        self._store = warehouse.store
        root = f"{warehouse.root}/" if warehouse.root else ""
        self._record_key = f"{root}{FOLDER}/{check_table_name(name)}.json"
        self._clock = clock
        self._aside = f"{root}{FOLDER}/{name}.new/"
        self._source = source
        self._etag: str | None = None
        self.record = CopyRecord(source=source)

    def open(self, *, incarnation: str) -> None:
        """Read what is there, and make sure that nobody else has written to it. No switch is under way.

        Raises:
            InvalidRequest: It is no copy of this table, or somebody has committed in it: nothing may be overwritten.
            CorruptLog: The record cannot be understood.
            Unavailable: The store did not answer.
        """
        table, name = self.table, self.table.name
        if not self._read():
            if self._lists(table.paths.log_prefix) or self._lists(table.paths.config_key):
                raise InvalidRequest(
                    f"table {name} is in the target and no copy that a backup made: choose an empty place"
                )
            return
        if self.record.source != self._source:
            raise InvalidRequest(
                f"table {name} in the target is a copy of {self.record.source}, not of {self._source}: choose an empty "
                "place"
            )
        if self.record.incarnation not in ("", incarnation):
            raise InvalidRequest(
                f"table {name} in the target is a copy of another table of this name, which was dropped since: choose "
                f"an empty place, or delete {table.paths.prefix}/ and {self._record_key} there"
            )
        self._require_own()

    def save(self, **changes: Any) -> None:
        """Write the record. Raises CommitConflict: another run is at work."""
        record = self.record.model_copy(update={**changes, "token": self._clock.new_id()})
        body = record.model_dump_json().encode()
        store, key, other = self._store, self._record_key, "another backup writes to the same target; let it end"
        if self._etag is None:
            written = create_claim(store, key, body, ended=other)
            info = written.info if written.body == body else None
        else:
            info = replace_claim(store, key, body, etag=self._etag)
        if info is None:
            raise CommitConflict(f"table {self.table.name}: {other}, then run this one again")
        self.record = record
        self._etag = info.etag

    def put_aside(self, key: str, body: bytes) -> None:
        """Write what is going to stand at a key when the copy switches."""
        self._store.put(self._aside + key, body)

    def get_aside(self, key: str) -> bytes:
        """Return what was put aside."""
        return self._store.get(self._aside + key).body

    def list(self, prefix: str) -> dict[str, ObjectInfo]:
        """List objects of the copy, by key."""
        return {info.key: info for info in list_all(self._store, prefix).objects}

    def prepare(
        self,
        *,
        log: Mapping[str, bytes],
        records: Mapping[str, bytes],
        deletes: Iterable[str],
        **changes: Any,
    ) -> None:
        """Write down a new state that is to take the place of the old one: :meth:`finish_switch` does it.

        Args:
            log: Every log file of the new state, by key.
            records: The small objects that change with it, ``table.json`` among them.
            deletes: What else is not part of it.
            changes: Fields of the record.
        """
        paths = self.table.paths
        hashes = {key: digest(body) for key, body in log.items()}
        logged = self.list(paths.log_prefix)
        new = dict(records)
        for key, body in log.items():
            is_there = key in logged and logged[key].size_bytes == len(body)
            if not (is_there and self.record.log.get(key) == hashes[key]):
                new[key] = body
        small = (key for prefix in _SWITCHED for key in self.list(f"{paths.prefix}/_icedb/{prefix}"))
        gone = {key for key in (*logged, *small) if key not in log and key not in records}
        for key, body in new.items():
            self.put_aside(key, body)
        order = sorted(new, key=lambda key: (key == paths.config_key, key))  # it is there when all of it is
        self.save(
            **changes,
            state="switching",
            log=hashes,
            fences=tuple(digest(body) for key, body in records.items() if key.startswith(paths.fences_prefix)),
            puts=tuple(order),
            deletes=(*sorted(gone.union(deletes)),),
        )

    def finish_switch(self) -> bool:
        """Do what :meth:`prepare` has written down; return whether there was something. Needs no source. Idempotent.

        What was put aside stays until the record says that all is done.

        Raises:
            CommitConflict: Another run is at work.
            CorruptLog: The record cannot be understood.
            Unavailable: The store did not answer; the switch is ended by the next run.
        """
        if not self._read() or self.record.state != "switching":
            return False
        store, record = self._store, self.record
        # WARN: first. Log files of the old state and of the new one, folded together, are no state that ever was: a
        # merge whose inputs have gone from the source names them no more, and they would be live beside its outputs.
        self.delete([self.table.paths.config_key])
        self.delete(record.deletes)
        self._stage()
        for key in record.puts:
            store.put(key, self.get_aside(key))
        self.save(state="whole", puts=(), deletes=())
        delete_or_raise(store, list(self.list(self._aside)))  # it is in place, or of no use any more
        return True

    def _stage(self) -> None:
        """Stage what waits in the new state, under ids by which a flush takes it (I3).

        In the copy it is staged later than in the source, maybe later after its id was made than a flush takes for
        certain. It is certain all the same, for the log that was read knows nothing of it: so it gets a fresh id, which
        the record knows before it is staged. A retry under the old one is refused for its age.
        """
        paths, config = (
            self.table.paths,
            decode_table_config(self.table.paths, self.get_aside(self.table.paths.config_key)),
        )
        there = self.list(paths.staging_prefix)
        last_ms = self.table.read_store_clock() - config.retry_window_ms // 2
        missing = {key: name or key for key, name in self.record.staged.items() if name not in there}
        for key, name in missing.items():
            if parse_staged_key(name).time_ms <= last_ms:
                suffix = name.removeprefix(paths.staging_prefix).partition(".")[2]
                missing[key] = f"{paths.staging_prefix}{new_batch_id(self._clock)}.{suffix}"
        if missing:
            self.save(staged=self.record.staged | missing)
        for key, name in missing.items():
            self._store.put(name, self.get_aside(key))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects of the copy. J6: it has no janitor. Raises Unavailable: some are there still."""
        report = self._store.delete(list(keys))
        if report.failed:
            first = report.failed[0]
            raise Unavailable(f"{first.key}: {first.reason}; run the backup again")

    def _read(self) -> bool:
        try:
            stored = self._store.get(self._record_key)
        except NotFound:
            return False
        says = "is no record of a backup that this release knows ({why}): upgrade, or choose an empty place"
        self.record = parse_record(CopyRecord, stored, CorruptLog, says)
        self._etag = stored.info.etag
        return True

    def _require_own(self) -> None:
        """Refuse a copy in which somebody has committed, or to which somebody has sent something."""
        paths, record = self.table.paths, self.record
        foreign = sorted(set(self.list(paths.log_prefix)) - set(record.log))
        fences = {key: digest(self._store.get(key).body) for key in self.list(paths.fences_prefix)}
        foreign += sorted(key for key, found in fences.items() if found not in record.fences)
        foreign += sorted(set(self.list(paths.staging_prefix)) - set(record.staged.values()))
        if foreign:
            raise InvalidRequest(
                f"table {paths.name} in the target was written to since the last backup ({foreign[0]}): it is a table "
                "of its own by now, and nothing is overwritten; choose an empty place"
            )

    def _lists(self, prefix: str) -> bool:
        return bool(self._store.list_page(prefix, limit=1).objects)

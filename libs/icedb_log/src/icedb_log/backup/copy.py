"""A copy of a table: what the backup wrote of it, and nothing that anybody else has written.

``<root>/_icedb/backup/<table>.json``, beside the tables of the copy, says whose copy it is, and names the log files and
the staged batches that the backup wrote, before it writes them. What stands there besides was written by somebody who
has taken the copy into use: it is no target any more. Every write of the record is a compare-and-set, so that of two
runs at once one stops.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict

from icedb_log.batch_ids import is_keyed, parse_batch_id_ms, retime_keyed_id
from icedb_log.clock import Clock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.formats import StagingFormat
from icedb_log.ingest.groups import OfferedBatch, encode_group, name_group_of_one
from icedb_log.ingest.staging import read_staged
from icedb_log.jobs import StagedBatch
from icedb_log.keys import check_table_name, first_id_of
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject, limit_reads, list_all, map_each
from icedb_log.store.records import CasObject, parse_record
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB, MINUTE_MS
from icedb_log.warehouse import Warehouse

FOLDER: Final = "_icedb/backup"
COPY_THREADS: Final = 16
_IN_MEMORY_BYTES: Final = 8 * MIB
_MAX_CLOCK_GAP_MS: Final = 10 * MINUTE_MS
"""Clocks of two stores differ by less."""


class CopyRecord(BaseModel):
    """What the record of a copy says.

    Attributes:
        source: Whose copy it is: URL of a warehouse.
        point_ms: What was acknowledged by then is in the copy, unix ms by the clock of the source's store; 0: none yet.
        token: Another one with each write: no content, hence no ETag, comes back.
        log: Keys of the log files that the backup wrote, or is about to write.
        staged: Name of each batch that waits in the source (:attr:`StagedBatch.name`), to its key in the copy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    token: str = ""
    source: str
    point_ms: int = 0
    log: tuple[str, ...] = ()
    staged: dict[str, str] = {}


def _decode(stored: StoredObject) -> CopyRecord:
    says = "is no record of a backup that this release knows ({why}): choose an empty place"
    return parse_record(CopyRecord, stored, CorruptLog, says)


class TableCopy:
    """The copy of one table. For one run at a time: a second one is noticed, and refused.

    Args:
        warehouse: Where the copy lies.
        name: Of the table.
        number: Which table of its name it is (T4): keys stay as they are.
        source: URL of the warehouse that it is a copy of.
        clock: For ids that no other run has.
    """

    def __init__(self, warehouse: Warehouse, name: str, *, number: int, source: str, clock: Clock) -> None:
        self.table: Final[TableStore] = warehouse.first(name).numbered(number)
        self.clock: Final = clock
        root = f"{warehouse.root}/" if warehouse.root else ""
        key = f"{root}{FOLDER}/{check_table_name(name)}.json"
        self._stored: Final = CasObject(self.table.store, key, _decode, lambda each: each.model_dump_json().encode())
        self.record = CopyRecord(source=source)

    def open(self) -> None:
        """Read what is there, and make sure that nobody else has written to it.

        Raises:
            InvalidRequest: It is no copy of this table, or somebody has committed in it: nothing may be overwritten.
            CorruptLog: The record cannot be understood.
            Unavailable: The store did not answer.
        """
        name, paths, source = self.table.name, self.table.paths, self.record.source
        found = self._stored.read()
        if found is None:
            if self.find(paths.log_prefix) or self.find(paths.config_key):
                raise InvalidRequest(
                    f"table {name} is in the target and no copy that a backup made: choose an empty place"
                )
            self.write_record()  # whoever else begins to write to it stops
            return
        self.record = found
        if self.record.source != source:
            raise InvalidRequest(
                f"table {name} in the target is a copy of {self.record.source}, not of {source}: choose an empty place"
            )
        if any(not key.startswith(paths.log_prefix) for key in self.record.log):
            raise InvalidRequest(
                f"table {name} in the target is a copy of another table of this name, purged since: choose an "
                "empty place"
            )
        foreign = sorted(set(self.find(paths.log_prefix)) - {*self.record.log})
        foreign += sorted(set(self.find(paths.staging_prefix)) - {*self.record.staged.values()})
        if foreign:
            raise InvalidRequest(
                f"table {name} in the target was written to since the last backup ({foreign[0]}): it is a table of its "
                "own by now, and nothing is overwritten; choose an empty place"
            )
        self.write_record()

    def write_record(self, **changes: Any) -> None:
        """Write the record. Raises CommitConflict: another run is at work."""
        record = self.record.model_copy(update={**changes, "token": self.clock.new_id()})

        def write(found: CopyRecord | None) -> CopyRecord:
            if ("" if found is None else found.token) != self.record.token:
                raise CommitConflict(
                    f"table {self.table.name}: another backup writes to the same target; let it end, then run this one "
                    "again"
                )
            return record

        self.record = self._stored.update(write).state

    def find(self, prefix: str) -> dict[str, ObjectInfo]:
        """List objects of the copy, by key."""
        return {info.key: info for info in list_all(self.table.store, prefix).objects}

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects of the copy. J6: it has no janitor. Raises Unavailable: some are there still."""
        failed = self.table.store.delete(list(keys)).failed
        if failed:
            raise Unavailable(f"{failed[0].key}: {failed[0].reason}; run the backup again")

    def save_staged(self, source: Table, batches: Iterable[StagedBatch]) -> frozenset[str]:
        """Stage batches of the source in the copy; return the keys of those that were not there any more.

        In the copy a batch is staged later than in the source, maybe later after its id was made than a flush takes for
        certain (I3). It is certain all the same, for the log that is read next knows nothing of it: so it gets a fresh
        id, the same for all copies of it. A retry under the old one is refused for its age. An id that was made from a
        key keeps the key (I7).

        Each copy is an object of its own; one of a group is a group of one, so that no other copy has its key (I8).
        """
        there = self.find(self.table.paths.staging_prefix)
        new = [
            batch
            for batch in batches
            if (found := there.get(self.record.staged.get(batch.name, ""))) is None
            or not (batch.is_grouped or found.size_bytes == batch.size_bytes)
        ]
        if new:
            names = self._name_staged(new, source.config, there=there.keys())
            self.write_record(staged=self.record.staged | names)
        by_name = {batch.name: batch for batch in new}

        def stage(name: str) -> None:
            batch, key = by_name[name], self.record.staged[name]
            body = read_staged(source.store, batch)
            if batch.is_grouped:
                staging_format = cast("StagingFormat", batch.format)  # as its group names it
                offered = OfferedBatch(first_id_of(key), staging_format, body, batch.sha256)
                _, body = encode_group(self.table.paths, [offered])
            self.table.store.put(key, body)

        return self._each(source.store, [*by_name], stage)

    def find_missing(self, prefix: str, infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Return those objects below a prefix of the source that the copy does not certainly have as they are.

        It has one that is of the same size, and was written certainly after it was written in the source.
        """
        there = self.find(prefix)
        return [
            info
            for info in infos
            if (found := there.get(info.key)) is None
            or found.size_bytes != info.size_bytes
            or found.modified_ms <= info.modified_ms + _MAX_CLOCK_GAP_MS
        ]

    def save(self, source: ObjectStore, infos: Iterable[ObjectInfo]) -> frozenset[str]:
        """Copy objects under their keys; return the keys of those that were not there any more."""
        sizes = {info.key: info.size_bytes for info in infos}
        return self._each(source, [*sizes], lambda key: copy_object(source, self.table.store, key, sizes[key]))

    def _each(self, source: ObjectStore, keys: Sequence[str], act: Callable[[str], object]) -> frozenset[str]:
        def try_one(key: str) -> str | None:
            try:
                act(key)
            except NotFound:
                return key
            return None

        found = map_each(try_one, keys, threads=limit_reads(source, COPY_THREADS), name="icedb-backup")
        return frozenset(key for key in found if key is not None)

    def _name_staged(
        self, batches: Sequence[StagedBatch], config: TableConfig, *, there: Collection[str]
    ) -> dict[str, str]:
        """Return the keys of batches in the copy, where each is alone, by their names in the source."""
        now_ms = self.table.read_store_clock()
        known = self.record.staged
        ids = {first_id_of(name): first_id_of(key) for name, key in known.items()}
        kept = {first_id_of(name) for name, key in known.items() if key in there}
        taken = {*ids.values(), *(batch.batch_id for batch in batches)}
        for batch_id in dict.fromkeys(batch.batch_id for batch in batches):
            ids.setdefault(batch_id, batch_id)
            if batch_id in kept:
                continue  # WARN: I8: under another id than the copy beside it this one would be another batch
            window_ms = config.id_skew_ms if is_keyed(batch_id) else config.retry_window_ms
            if parse_batch_id_ms(ids[batch_id]) <= now_ms - window_ms // 2:
                ids[batch_id] = next(each for each in self._make_fresh_ids(batch_id, now_ms) if each not in taken)
                taken.add(ids[batch_id])
        return {batch.name: self._name(batch, ids[batch.batch_id]) for batch in batches}

    def _name(self, batch: StagedBatch, batch_id: str) -> str:
        paths = self.table.paths
        if not batch.is_grouped:
            return f"{paths.staging_prefix}{batch_id}.{batch.format}"
        return name_group_of_one(
            paths,
            batch_id=batch_id,
            staging_format=batch.format,
            size_bytes=batch.size_bytes,
            sha256=batch.sha256,
        )

    def _make_fresh_ids(self, batch_id: str, now_ms: int) -> Iterator[str]:
        """Yield ids for a batch that is staged now; of one key they differ in their time alone (I7)."""
        for made_ms in count(now_ms):
            yield retime_keyed_id(batch_id, made_ms) if is_keyed(batch_id) else new_batch_id(self.clock)


def copy_object(source: ObjectStore, target: ObjectStore, key: str, size_bytes: int) -> int:
    """Copy one object under its key; return its size. Raises NotFound."""
    if size_bytes <= _IN_MEMORY_BYTES:
        body = source.get(key).body
        target.put(key, body)
        return len(body)
    with tempfile.TemporaryDirectory(prefix="icedb-backup-") as folder:
        path = Path(folder) / "object"
        size_bytes = source.download(key, path).size_bytes
        target.upload(key, path, may_move=True)
        return size_bytes

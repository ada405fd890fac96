"""Producers' own keys: a retry under the same key becomes the same batch, whatever the key looks like.

A batch id has to be a young UUIDv7 (I3). A producer that has only a key of its own (an order number, a message that
waited in a queue for an hour) binds the key to a batch id (I7): the first one writes a record with a conditional PUT,
and everybody who comes later with this key finds it. When the batch is staged the record says so, and nobody stages it
again, however late a retry comes. Records are kept for :data:`KEEP_MS`; then the janitor deletes them.
"""

import hashlib
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, Unavailable
from icedb_log.store.object_store import ObjectStore, StoredObject
from icedb_log.store.records import CasObject
from icedb_log.store.table_store import TableStore
from icedb_log.units import DAY_MS

KEEP_MS: Final = DAY_MS
"""How long a key is remembered, at least."""


class Binding(BaseModel):
    """What a producer's key stands for.

    Attributes:
        batch_id: The batch's id.
        content_sha256: Of the decoded body (:func:`icedb_log.content.hash_content`): a key belongs to one
            content, in whatever format (I8). Empty where there is no body, as of a write by Spark.
        is_staged: Whether the batch certainly was staged or committed by the process that bound the key.
        is_new: Whether this call bound the key.
        record_key: Where the record lies.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    batch_id: str
    content_sha256: str
    is_staged: bool = Field(alias="staged")
    is_new: bool = Field(default=False, exclude=True)
    record_key: str = Field(default="", exclude=True)

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()


def bind_key(table: TableStore, *, key: str, batch_id: str, content_sha256: str) -> Binding:
    """Return the batch id of a producer's key, bound by this call or by an earlier one. Idempotent.

    Args:
        table: The table.
        key: Any text; the object's name is its hash.
        batch_id: What to bind if the key is new.
        content_sha256: Of the batch, see :class:`Binding`.

    Raises:
        InvalidRequest: The key is bound to other content.
        Unavailable: The store did not say which id is bound; call again.
    """
    record_key = _record_key(table, key)
    mine = Binding(batch_id=batch_id, content_sha256=content_sha256, is_staged=False, record_key=record_key)

    def bind(found: Binding | None) -> Binding:
        if found is None:
            return mine
        if found.content_sha256 != content_sha256:
            raise InvalidRequest(
                f"table {table.name}: the key {key[:80]!r} was used before with other content (batch "
                f"{found.batch_id}); a key or an id belongs to one batch: send the same bytes, or use another one"
            )
        return found

    try:
        found = _record(table, key).update(bind, gave_up=Unavailable, is_likely_new=True).state
    except CommitOutcomeUnknown as error:
        raise Unavailable(
            f"table {table.name}: the store did not confirm the key {key[:80]!r}; send the batch again"
        ) from error
    return found.model_copy(update={"is_new": found.batch_id == mine.batch_id})


def read_binding(table: TableStore, *, key: str) -> Binding | None:
    """Return what a producer's key is bound to; ``None`` if to nothing yet. Raises Unavailable."""
    return _record(table, key).read()


def _record(table: TableStore, key: str) -> CasObject[Binding]:
    return CasObject(table.store, _record_key(table, key), _decode, Binding.encode)


def _decode(stored: StoredObject) -> Binding:
    record_key = stored.info.key
    try:
        found = Binding.model_validate_json(stored.body)
        parse_uuid7_ms(found.batch_id)
    except (ValueError, InvalidRequest) as error:
        raise Unavailable(
            f"{record_key} does not hold a key's record ({type(error).__name__}); use another key, or delete it by hand"
        ) from error
    return found.model_copy(update={"record_key": record_key})


def _record_key(table: TableStore, key: str) -> str:
    return table.paths.idempotency_key(hashlib.sha256(key.encode()).hexdigest())


def mark_staged(store: ObjectStore, binding: Binding) -> None:
    """Remember that the batch of a key is staged, or committed, so that no retry does it again. Idempotent.

    Raises:
        Unavailable: Not remembered; a retry within the retry window is safe all the same (I3).
        CommitOutcomeUnknown: The same.
    """
    store.put(binding.record_key, binding.model_copy(update={"is_staged": True}).encode())

"""Which ids stand for the same batch: an id for itself, and all ids that were made from one key of a producer (I7).

An id of a producer is a UUIDv7. One that a front end makes from a key is a UUIDv8: the time at which it was made, then
74 bits of the key's SHA-256. So a retry of the key, through whichever front end, has another time and the same end, and
whoever asks whether the log or staging has a batch finds it, without a record of the key.
"""

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from icedb_log.clock import make_uuid7_hex, parse_uuid7_ms, with_time

_VERSION_AT: Final = 14
_KEYED: Final = "8"
_HASH_BITS: Final = 74


def make_keyed_id(key: str, unix_ms: int) -> str:
    """Return the id of a batch that is staged now under a producer's own key."""
    bits = int.from_bytes(hashlib.sha256(key.encode()).digest()) >> (256 - _HASH_BITS)
    made = str(uuid.UUID(hex=make_uuid7_hex(unix_ms, bits)))
    return f"{made[:_VERSION_AT]}{_KEYED}{made[_VERSION_AT + 1 :]}"


def retime_keyed_id(batch_id: str, unix_ms: int) -> str:
    """Return the id that a batch with the same key has which is staged at another time."""
    return str(uuid.UUID(hex=with_time(batch_id.replace("-", ""), unix_ms)))


def is_keyed(batch_id: str) -> bool:
    """Return whether an id was made from a key."""
    return batch_id[_VERSION_AT : _VERSION_AT + 1] == _KEYED


def name_of(batch_id: str) -> str:
    """Return what all ids of a batch have in common: the id itself, or what it has of the key."""
    return batch_id[_VERSION_AT:] if is_keyed(batch_id) else batch_id


def parse_batch_id_ms(batch_id: str) -> int:
    """Return the unix milliseconds inside the id of a batch, a producer's (UUIDv7) or one that was made from a key.

    Raises:
        InvalidRequest: It is neither.
    """
    return parse_uuid7_ms(f"{batch_id[:_VERSION_AT]}7{batch_id[_VERSION_AT + 1 :]}" if is_keyed(batch_id) else batch_id)


class BatchIds:
    """Ids of batches, asked whether they name one: by its id, or by another one of the same key."""

    def __init__(self, batch_ids: Iterable[str]) -> None:
        self._ids = frozenset(batch_ids)
        self._keyed: dict[str, list[str]] = {}
        for batch_id in filter(is_keyed, self._ids):
            self._keyed.setdefault(name_of(batch_id), []).append(batch_id)

    @property
    def last(self) -> str | None:
        """The highest id that a batch can have which these name; ``None``: it may have any."""
        return None if self._keyed else max(self._ids)

    def __bool__(self) -> bool:
        return bool(self._ids)

    def __contains__(self, batch_id: str) -> bool:
        return batch_id in self._ids or (is_keyed(batch_id) and name_of(batch_id) in self._keyed)

    def find(self, batch_id: str) -> Sequence[str]:
        """Return those of these ids that name a batch."""
        if is_keyed(batch_id):
            return self._keyed.get(name_of(batch_id), ())
        return (batch_id,) if batch_id in self._ids else ()

    def find_in(self, others: Iterable[str]) -> dict[str, str]:
        """Return those of these ids whose batch other ids name, each with the one that does."""
        found = {batch_id: batch_id for batch_id in self._ids.intersection(others)}
        if self._keyed:
            for other in filter(is_keyed, others):
                found.update(dict.fromkeys(self._keyed.get(name_of(other), ()), other))
        return found

"""The head of a table's chain of publications, and the record of each: how they are written down (P1, P2).

``_icedb/iceberg/head.json`` is the one object that changes, by compare-and-set: ``{"format": 1, "chain": <id>,
"sequence": <number of this state>, "withdrawn": <sequence>, "current": null | {"id", "since", "as_of", "metadata",
"logs", "pins", "pins_end", "objects"}}``. Each state has one more than the one before, so that no content, hence no
ETag, ever comes back, and a state with a current publication has that one's sequence. ``withdrawn``: nothing with that
sequence, or a lower one, may be read any more (E5).

``_icedb/iceberg/publications/<chain>.<sequence>.<since>.<id>.json`` is the record of one publication, written before
anything else of it, never changed, and deleted after everything else of it: ``{"format": 1, "by": <who>, "objects":
[<names>]}``, the objects of the publication that it goes on from. All that decides stands in its name, so that a
listing is enough.

Objects are named without what their keys begin with, :attr:`~icedb_log.keys.TablePaths.published_prefix`.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from icedb_log.errors import CorruptLog, NotFound, PreconditionFailed
from icedb_log.keys import TablePaths
from icedb_log.publish.model import Publication
from icedb_log.store.object_store import StoredObject
from icedb_log.store.table_store import TableStore

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Head:
    """One state of a chain's head.

    Attributes:
        chain: Id of the chain.
        sequence: Number of this state.
        current: The publication that engines are shown; ``None``: there is none.
        withdrawn: What has this sequence or a lower one may not be read any more.
        etag: Of the object.
        modified_ms: LastModified of the object.
    """

    chain: str
    sequence: int
    current: Publication | None = None
    withdrawn: int = -1
    etag: str = ""
    modified_ms: int = 0

    def retired(self, *, is_withdrawn: bool = False) -> "Head":
        """Return a state that shows no publication: all that began before it lose their compare-and-set.

        ``is_withdrawn``: nothing that was published before may be read any more.
        """
        sequence = self.sequence + 1
        withdrawn = sequence if is_withdrawn else self.withdrawn
        return replace(self, sequence=sequence, current=None, withdrawn=withdrawn)


def encode_head(paths: TablePaths, head: Head) -> bytes:
    """Return the bytes of a head."""
    current = None if head.current is None else _encode_current(paths, head.current)
    fields = {
        "format": _FORMAT,
        "chain": head.chain,
        "sequence": head.sequence,
        "withdrawn": head.withdrawn,
        "current": current,
    }
    return orjson.dumps(fields)


def _encode_current(paths: TablePaths, current: Publication) -> dict[str, Any]:
    return {
        "id": current.publication_id,
        "since": current.since_ms,
        "as_of": current.as_of_ms,
        "metadata": _shorten(paths, current.metadata_key),
        "logs": sorted(current.log_names),
        "pins": current.pins_digest,
        "pins_end": current.pins_end_ms,
        "objects": sorted(_shorten(paths, key) for key in current.objects),
    }


def _shorten(paths: TablePaths, key: str) -> str:
    return key.removeprefix(paths.published_prefix)


def decode_head(paths: TablePaths, stored: StoredObject) -> Head:
    """Return what a head says. Raises CorruptLog."""
    try:
        value = orjson.loads(stored.body)
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']}")
        head = Head(
            chain=str(value["chain"]),
            sequence=int(value["sequence"]),
            withdrawn=int(value["withdrawn"]),
            etag=stored.info.etag,
            modified_ms=stored.info.modified_ms,
        )
        current = value["current"]
        return head if current is None else replace(head, current=_decode_current(paths, head, current))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptLog(
            f"{stored.info.key}: not understood ({error}); upgrade if a newer release wrote it, else delete "
            f"{paths.iceberg_prefix} whole: nothing of the table is lost, and engines begin with a new chain"
        ) from error


def _decode_current(paths: TablePaths, head: Head, value: Mapping[str, Any]) -> Publication:
    return Publication(
        publication_id=str(value["id"]),
        chain=head.chain,
        sequence=head.sequence,
        metadata_key=paths.published_prefix + value["metadata"],
        since_ms=int(value["since"]),
        as_of_ms=int(value["as_of"]),
        objects=tuple(paths.published_prefix + name for name in value["objects"]),
        log_names=frozenset(value["logs"]),
        pins_digest=str(value["pins"]),
        pins_end_ms=None if value.get("pins_end") is None else int(value["pins_end"]),
        modified_ms=head.modified_ms,
    )


def read_head(table: TableStore) -> Head | None:
    """Read the head of a table's chain; ``None``: there is none. One request.

    Raises:
        CorruptLog: It cannot be understood.
        Unavailable: The store did not answer.
    """
    try:
        return decode_head(table.paths, table.store.get(table.paths.publication_head_key))
    except NotFound:
        return None


def begin_chain(table: TableStore, chain: str) -> None:
    """Put the head of a chain of its own where there is none: whoever is refused reads the other one's (P1)."""
    with contextlib.suppress(PreconditionFailed):
        table.store.put_if_absent(table.paths.publication_head_key, encode_head(table.paths, Head(chain, 0)))


def read_publication(table: TableStore) -> Publication | None:
    """Return the publication that engines are shown; ``None``: there is none. Raises as :func:`read_head`."""
    head = read_head(table)
    return None if head is None else head.current


def encode_record(paths: TablePaths, *, owner: str, objects: Collection[str]) -> bytes:
    """Return the bytes of a publication's record: who makes it, and which earlier objects it may refer to."""
    names = sorted(_shorten(paths, key) for key in objects)
    return orjson.dumps({"format": _FORMAT, "by": owner, "objects": names})


def decode_record(paths: TablePaths, body: bytes) -> frozenset[str]:
    """Return the keys of the earlier objects that a publication may refer to. Raises ValueError."""
    try:
        return frozenset(paths.published_prefix + name for name in orjson.loads(body)["objects"])
    except (KeyError, TypeError) as error:
        raise ValueError("not a record of a publication") from error

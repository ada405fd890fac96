"""Publications in JSON: the least that a writer of publications does, and what an engine reads of them.

``v.metadata.json`` lists the snapshots of the history, oldest first; each has an object of its own with the paths of
its data files, and the bounds of those that are new; later publications go on naming it, as they do with manifests.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import orjson
from icedb_log.commit.table import Table
from icedb_log.publish.model import Draft, Publication, Written
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore


@dataclass(frozen=True, slots=True)
class Published:
    """One snapshot as an engine sees it."""

    operation: str
    log_name: str
    since_ms: int
    key: str
    paths: frozenset[str]


def read_metadata(store: ObjectStore, publication: Publication) -> list[dict[str, Any]]:
    """Return what a publication's metadata says of each snapshot."""
    found: list[dict[str, Any]] = orjson.loads(store.get(publication.metadata_key).body)["snapshots"]
    return found


def read_published(store: ObjectStore, publication: Publication) -> list[Published]:
    """Return all snapshots of a publication's history. Raises NotFound: one of its objects is gone."""
    return [
        Published(
            said["operation"],
            said["log"],
            said["since"],
            said["key"],
            frozenset(orjson.loads(store.get(said["key"]).body)["paths"]),
        )
        for said in read_metadata(store, publication)
    ]


class JsonPublications:
    """A writer of publications in JSON. Keeps no state of a table."""

    def __init__(self) -> None:
        self.is_fitting = True
        self.drafts: list[Draft] = []

    def fits(self, table: Table, base: Publication) -> bool:
        """Whether a test says so."""
        del table, base
        return self.is_fitting

    def require_fit(self, table: Table, log_names: AbstractSet[str], *, now_ms: int) -> None:
        """All that is tried is written."""

    def live_paths(self, table: TableStore, base: Publication) -> Collection[str]:
        """Return the data files of the last snapshot."""
        published = read_published(table.store, base)
        return published[-1].paths if published else ()

    def live_digest(self, table: TableStore, base: Publication) -> int | None:
        """Nobody knows: what the steps lead to is compared path by path."""
        del table, base
        return None

    def write(self, draft: Draft) -> Written:
        """Write one object for each step, and the metadata."""
        store, base = draft.table.store, draft.base
        self.drafts.append(draft)
        kept = read_metadata(store, base) if base is not None else []
        paths = set(self.live_paths(draft.table, base)) if base is not None else set[str]()
        if draft.base_since_ms < draft.since_ms:
            kept = []
        kept = [said for said in kept[:-1] if said["since"] >= draft.since_ms] + kept[-1:]
        for number, step in enumerate(draft.steps):
            paths = paths.difference(step.removed).union(marker.path for marker in step.added)
            bounds = {marker.path: dict(marker.stats) for marker in step.added}
            key = draft.put(f"s{number}.json", orjson.dumps({"paths": sorted(paths), "bounds": bounds}))
            said = {"operation": step.operation, "log": step.log_name, "since": step.since_ms, "key": key}
            kept.append(said)
        metadata_key = draft.put("v.metadata.json", orjson.dumps({"snapshots": kept}))
        return Written(metadata_key, (metadata_key, *(said["key"] for said in kept)))

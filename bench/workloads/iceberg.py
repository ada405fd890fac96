"""W=iceberg: planning through our Iceberg catalog beside a native table of the same files; what publishing costs."""

from collections.abc import Iterator, Mapping
from typing import Final

from icedb_log.store_settings import StoreSettings

from bench.figures import OURS
from bench.harness import Case, Workload
from bench.iceberg_systems import Publishing, publish_first
from bench.processes import started
from bench.serve import Peer
from bench.snapshot_service import running_catalog
from bench.snapshot_tables import build_icedb
from bench.snapshot_work import NATIVE_METADATA, Shape
from bench.static_catalog import running_static_catalog

NATIVE: Final = "native Iceberg"
PLANS: Final = {
    "PyIceberg plans all": "PyIcebergAll",
    "PyIceberg plans one day and event": "PyIcebergDay",
    "DuckDB plans all": "DuckDB",
}
COMMITS: Final = 90
WARM_TURNS: Final = 2


class IcebergWorkload(Workload):
    """Tables of several sizes, on a directory."""

    description = (
        "planning a scan through the Iceberg catalog beside a native table of the same files, in seconds; "
        "publishing ten files more"
    )

    def cases(self) -> Iterator[Case]:
        """Make a table of each size, and ask for it in each way."""
        for count in (1_000, 10_000) if self.options.is_quick else (10_000, 100_000):
            root = self.folder / str(count)
            planned = {f"{how}, {count:,} files": kind for how, kind in PLANS.items() if self._wants(how, count)}
            if planned:
                build_icedb(root, Shape(count, COMMITS))
                publish_first(root)
                native = self.folder / f"native-{count}"
                with (
                    running_catalog(StoreSettings(f"file://{root}"), self.folder / f"gateway-{count}") as catalog,
                    running_static_catalog(native / NATIVE_METADATA, self.folder / f"static-{count}") as static,
                ):
                    places = {
                        OURS: Peer("bench.peers.iceberg:Place", Shape(count, COMMITS), catalog.address),
                        NATIVE: Peer("bench.peers.iceberg:Place", Shape(count, COMMITS), static, native),
                    }
                    for name, kind in planned.items():
                        yield from self._plans(name, kind, count, places)
            if self._wants("a publication", count):
                published = self.folder / f"published-{count}"
                build_icedb(published, Shape(count, COMMITS))
                with started(Publishing(published, file_count=count, commit_count=COMMITS)) as ours:
                    name = f"a publication of 10 files into {count:,}"
                    yield Case(name, 10, ours, unit="files", warm_turn_count=WARM_TURNS)

    def _wants(self, how: str, count: int) -> bool:
        names = (f"{how}, {count:,} files", f"{how} of 10 files into {count:,}")
        return any(self.wants(name) for name in names)

    def _plans(self, name: str, kind: str, count: int, places: Mapping[str, Peer]) -> Iterator[Case]:
        works = [Peer(f"bench.peers.iceberg:{kind}", place, name=each) for each, place in places.items()]
        with started(*works) as systems:
            yield Case(name, count, systems, unit="files", warm_turn_count=WARM_TURNS)

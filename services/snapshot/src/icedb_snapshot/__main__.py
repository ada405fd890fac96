"""Runs the snapshot service: ``python -m icedb_snapshot``. Needs the store alone, and begins without it.

With Redis, which may come and go, it lists watched tables rarely.
"""

from functools import partial
from typing import Final

from icedb_service.endpoints import run_endpoints
from icedb_service.main import run_main

from icedb_snapshot.server import SnapshotService
from icedb_snapshot.settings import SnapshotSettings

serve: Final = partial(run_endpoints, SnapshotService)

if __name__ == "__main__":
    run_main(SnapshotSettings, "snapshot", serve)

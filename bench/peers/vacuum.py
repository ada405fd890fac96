"""delta-rs in the vacuum benchmark. ``python -m bench.peers.vacuum FOLDER`` plans one, and prints figures as JSON."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from bench.figures import Figure, TakesTurns

NO_RETENTION: Final[Mapping[str, Any]] = {"retention_hours": 0, "enforce_retention_duration": False}


class DeltaRs(TakesTurns):
    """Open the table, then ``vacuum`` without retention.

    Args:
        uri: Of the table.
        options: How its store is reached.
        count: Data files that are dead.
    """

    name = "delta-rs"

    def __init__(self, uri: str, options: Mapping[str, str], count: int) -> None:
        self._uri = uri
        self._options = dict(options)
        self._count = count

    def run(self) -> None:
        """One vacuum."""
        deleted = DeltaTable(self._uri, storage_options=self._options).vacuum(**NO_RETENTION, dry_run=False)
        if len(deleted) != self._count:
            raise AssertionError(f"delta-rs: {len(deleted)} deleted")

    def check(self) -> Sequence[Figure]:
        """Who started it looks at what is left."""
        return ()


def plan(folder: Path) -> Mapping[str, float]:
    """Plan a vacuum of a table; return what was found, and the processor time of reading and of planning, seconds."""
    began = time.process_time()
    table = DeltaTable(str(folder))
    read = time.process_time()
    dead = table.vacuum(**NO_RETENTION, dry_run=True)
    log_bytes = sum(file.stat().st_size for file in (folder / "_delta_log").iterdir())
    said = {"dead": len(dead), "log_bytes": log_bytes}
    return said | {"read_cpu_s": read - began, "plan_cpu_s": time.process_time() - read}


if __name__ == "__main__":
    print(json.dumps(plan(Path(sys.argv[1]))))

"""The table of the snapshot benchmark as delta-rs leaves it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from bench.peers.snapshot_iceberg import build_iceberg
from bench.snapshot_work import FIRST_COMMIT_MS, ROWS, STEP_MS, File, Shape, write_file

CHECKPOINT_EVERY: Final = 100
"""Commits between two checkpoints of a Delta table unless it is told otherwise."""


class Builder:
    """Builds tables of the peers when it is asked to, in their environment."""

    name = "builder"

    def build_delta(self, root: Path, shape: Shape, checkpoint_at: int | None) -> None:
        """See :func:`build_delta`."""
        build_delta(root, shape, checkpoint_at=checkpoint_at)

    def build_iceberg(self, root: Path, shape: Shape, location: str) -> str:
        """See :func:`bench.peers.snapshot_iceberg.build_iceberg`."""
        return build_iceberg(root, shape, location=location)


def build_delta(root: Path, shape: Shape, *, checkpoint_at: int | None) -> Path:
    """Write a Delta table: one JSON file for each commit, and a checkpoint as of commit ``checkpoint_at``."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    write_delta_commit(
        root, 0, [json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}), _delta_metadata()]
    )
    for commit, numbers in enumerate(shape.commits(), 1):
        write_delta_commit(root, commit, delta_adds(numbers, FIRST_COMMIT_MS + commit * STEP_MS))
        if commit == checkpoint_at:
            DeltaTable(root).create_checkpoint()
    return root


def write_delta_commit(root: Path, version: int, lines: Sequence[str]) -> None:
    """Write one commit."""
    write_file(root / "_delta_log" / f"{version:020d}.json", "\n".join(lines).encode())


def delta_adds(numbers: range, time_ms: int) -> list[str]:
    """Return the lines that add files."""
    return [json.dumps(_delta_add(File(number), time_ms)) for number in numbers]


def _delta_add(file: File, time_ms: int) -> dict[str, Any]:
    bounds = file.bounds
    stats = {
        "numRecords": ROWS,
        "minValues": {column: low for column, (low, _) in bounds.items()},
        "maxValues": {column: high for column, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
    return {
        "add": {
            "path": file.name,
            "partitionValues": {"d": file.day},
            "size": file.size_bytes,
            "modificationTime": time_ms,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _delta_metadata() -> str:
    types = {"ts": "timestamp", "event": "string", "user_id": "string", "amount": "double", "d": "date"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"id": "bench", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    more = {"partitionColumns": ["d"], "configuration": {}, "createdTime": FIRST_COMMIT_MS}
    return json.dumps({"metaData": metadata | more})

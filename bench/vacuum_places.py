"""Where the tables of the vacuum benchmark lie: a directory, or a bucket of an S3 server. They travel by pickle."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_options import S3Options

from bench.counting_s3 import BUCKET, fill, take_counts
from bench.servers import KEY, delta_options


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory. Nobody counts requests there."""

    root: Path

    def clear(self, prefix: str) -> None:
        """Remove a folder."""
        shutil.rmtree(self.root / prefix, ignore_errors=True)

    def write(self, keys: Sequence[str], *, size_bytes: int) -> None:
        """Write files."""
        for folder in {(self.root / key).parent for key in keys}:
            folder.mkdir(parents=True, exist_ok=True)
        for key in keys:
            (self.root / key).write_bytes(b"x" * size_bytes)

    def open(self) -> ObjectStore:
        """Open it."""
        return LocalObjectStore(self.root)

    def take_counts(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def delta(self, prefix: str) -> tuple[str, Mapping[str, str]]:
        """Return a path."""
        return str(self.root / prefix), {}


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of :mod:`bench.counting_s3`."""

    endpoint: str

    def clear(self, prefix: str) -> None:
        """Remove what is left of the turn before."""
        store = self.open()
        store.delete([info.key for info in list_all(store, f"{prefix}/").objects])

    def write(self, keys: Sequence[str], *, size_bytes: int) -> None:
        """Write objects."""
        fill(self.endpoint, keys, size_bytes=size_bytes)

    def open(self) -> ObjectStore:
        """Open it."""
        return S3ObjectStore(BUCKET, S3Options(self.endpoint, access_key_id=KEY, secret_access_key=KEY))

    def take_counts(self) -> Mapping[str, int]:
        """Return what the server counted."""
        return take_counts(self.endpoint)

    def delta(self, prefix: str) -> tuple[str, Mapping[str, str]]:
        """Return a URL, and where its server is."""
        return f"s3://{BUCKET}/{prefix}", delta_options(self.endpoint)


Place = Directory | Bucket

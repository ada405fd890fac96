"""From a store URL to a warehouse: the one place that chooses the kind of store.

``file:///abs/dir`` is a directory of this machine, keys relative to it. ``s3://bucket/some/prefix`` is a bucket,
keys full, tables below the prefix.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field

from icedb_log.errors import InvalidRequest
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.object_store import check_key
from icedb_log.store.s3_options import S3Options
from icedb_log.texts import did_you_mean
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse

__all__ = ["StoreFields", "StoreSettings", "open_warehouse"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORMS: Final = "use file:///absolute/directory or s3://bucket/optional/prefix"
_SHOWN_CHARS: Final = 200


class StoreFields(BaseModel):
    """The fields by which settings, of clients and of services, say where the store is and how it is reached."""

    store: str | None = None
    """Where the warehouse lies: `file:///absolute/folder` or `s3://bucket/prefix`."""

    s3_endpoint: str | None = None
    """URL of an S3-compatible server, e.g. `http://minio:9000`; empty for AWS. Credentials are taken from
    `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` or wherever boto3 finds them."""

    s3_region: str | None = None
    """Region of the bucket; empty: what boto3 finds."""

    s3_connect_timeout_ms: Annotated[int, Field(ge=100, le=MINUTE_MS)] = 3 * SECOND_MS
    """How long a connection to S3 may take, milliseconds. Shorter notices a dead server sooner; longer survives a busy
    one."""

    s3_read_timeout_ms: Annotated[int, Field(ge=500, le=10 * MINUTE_MS)] = 20 * SECOND_MS
    """How long to wait for the next bytes of an answer of S3, milliseconds. Shorter notices a server that hangs sooner;
    a conditional write that runs into it may have landed, which costs a read to find out (W2)."""

    @classmethod
    def find_misspelt(cls, variables: Iterable[str]) -> list[str]:
        """Return a sentence for each of the environment's variables that is no setting, but is spelt nearly like one.

        Settings of others are left alone: they differ by a whole word.
        """
        known = [f"ICEDB_{name.upper()}" for name in cls.model_fields]
        others = sorted({name for name in variables if name.upper().startswith("ICEDB")} - set(known))
        near = {
            name: did_you_mean(name, [each for each in known if _may_mean(name.upper(), each)], cutoff=0.8)
            for name in others
            if name.upper() not in known
        }
        return [f"{name[:_SHOWN_CHARS]} is no setting{meant}" for name, meant in near.items() if meant]

    @property
    def s3(self) -> S3Options | None:
        """How to reach S3; ``None`` when the store is a directory."""
        if self.store is not None and not self.store.startswith("s3:"):
            return None
        return S3Options(
            endpoint_url=self.s3_endpoint,
            region=self.s3_region,
            connect_timeout_s=self.s3_connect_timeout_ms / SECOND_MS,
            read_timeout_s=self.s3_read_timeout_ms / SECOND_MS,
        )

    @property
    def store_settings(self) -> "StoreSettings":
        """What is needed to open the warehouse, also from another process. Raises InvalidRequest if no store is set."""
        if self.store is None:
            raise InvalidRequest(
                "no store is set: give ICEDB_STORE (or --store), e.g. file:///var/lib/icedb or s3://bucket/prefix"
            )
        return StoreSettings(self.store, self.s3)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """All that another process needs to open the same warehouse. Plain values; the secret is not shown.

    Attributes:
        url: ``file:///abs/dir`` or ``s3://bucket/prefix``.
        s3: How to reach S3; ``None``: AWS, as boto3 finds it. Not used for a directory.
    """

    url: str
    s3: S3Options | None = None

    def open(self) -> Warehouse:
        """Open the warehouse; nothing is sent or created. Raises InvalidRequest."""
        return open_warehouse(self.url, self.s3)


def open_warehouse(url: str, s3: S3Options | None = None) -> Warehouse:
    """Open a warehouse by its URL; nothing is sent or created.

    Call ``warehouse.store.probe()`` once in each service before the first write.

    Args:
        url: ``file:///abs/dir`` or ``s3://bucket/prefix``.
        s3: How to reach S3; ``None``: AWS, as boto3 finds it.

    Raises:
        InvalidRequest: The URL has another form, or names a place that cannot be a store.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"store URL {url[:_SHOWN_CHARS]!r}: {error}; {_FORMS}") from error
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidRequest(
            f"store URL of scheme {parts.scheme!r}: has a user, a query or a fragment; {_FORMS}, and set "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and ICEDB_S3_ENDPOINT"
        )
    if parts.scheme == "file":
        return _open_directory(url, parts.netloc, parts.path)
    if parts.scheme == "s3":
        return _open_bucket(url, parts.netloc, parts.path, s3 or S3Options())
    raise InvalidRequest(f"store URL {url[:_SHOWN_CHARS]!r}: {_FORMS}")


def _open_directory(url: str, host: str, path: str) -> Warehouse:
    """Open a directory."""
    folder = unquote(path)
    is_local = host in ("", "localhost")
    if not is_local or not folder.startswith("/") or not folder.strip("/") or "\0" in folder:
        raise InvalidRequest(
            f"store URL {url[:_SHOWN_CHARS]!r}: not an absolute directory of this machine; {_FORMS} (three slashes)"
        )
    return Warehouse(LocalObjectStore(Path(folder)))


def _open_bucket(url: str, bucket: str, path: str, options: S3Options) -> Warehouse:
    """Open a bucket."""
    from icedb_log.store.s3 import S3ObjectStore  # noqa: PLC0415 - boto3 costs a third of a second: not for a directory

    root = path.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidRequest(f"store URL {url[:_SHOWN_CHARS]!r}: {bucket!r} is not the name of a bucket; {_FORMS}")
    if root:
        try:
            check_key(root)
        except InvalidRequest as error:
            raise InvalidRequest(f"store URL {url[:_SHOWN_CHARS]!r}: {error}") from error
    scratch_prefix = f"{root}/" if root else ""
    return Warehouse(S3ObjectStore(bucket, options, scratch_prefix=scratch_prefix), root)


def _may_mean(name: str, known: str) -> bool:
    """Whether a name is that of a setting, misspelt: word by word, words run together or cut, or with a word added."""
    words, own = name.split("_"), known.split("_")
    is_spelt_so = len(words) == len(own) and all(map(_is_near, words, own))
    return is_spelt_so or "".join(words) == "".join(own) or name.startswith(f"{known}_")


def _is_near(word: str, known: str) -> bool:
    return word == known or bool(did_you_mean(word, [known], cutoff=0.65))

"""An object store on S3 or a server that speaks its protocol.

Owns which client sends a request, hence how often it is sent (:mod:`icedb_log.store.s3_client`); what the answers mean
is in :mod:`icedb_log.store.s3_quirks`. Reads, listings and unconditional writes go through the client with boto3's
standard retries; a read of one version is tried without boto3 first.
**A conditional write is sent once**, through the one that never retries: a retry of one that landed would be
refused, and look as if somebody else had won (W2). Only 409, by which S3 says that it did nothing, is sent again.
A delete uses that client, too: it is sent again at a pace of its own.

ETags go in and out without quotes: some gateways match only that form, and the others take both. Times are the
server's: ``Last-Modified`` and ``Date``, both in whole seconds (J1).
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.store.deletes import BatchAnswer, DeletePace, delete_in_batches
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
    check_byte_range,
    check_folder_prefix,
    check_key,
    check_page_limit,
    check_presign_ms,
    is_listable,
    probe_conditional_writes,
)
from icedb_log.store.s3_client import (
    READ_ATTEMPTS,
    SINGLE_REQUEST_BYTES,
    TRANSFER,
    S3Clients,
    make_clients,
    moving_in_parts,
)
from icedb_log.store.s3_options import S3Options
from icedb_log.store.s3_quirks import (
    date_ms_of,
    explain_conditional_write,
    explained,
    info_of,
    is_beyond_the_end,
    is_conflict_in_progress,
    is_unknown_request,
    part_of,
    read_delete_answer,
    read_delete_refusal,
    strip_quotes,
)

CONFLICT_WAITS_MS: Final = (20, 40, 80, 160, 320)
"""How long to wait after each answer of 409 before a conditional write is sent again."""

SINGLE_COPY_BYTES: Final = 64 * 1024 * 1024
"""Up to this size one request copies an object, well within a read timeout; above it parts are copied."""


class S3ObjectStore:
    """Objects of one bucket. Safe for use by many threads, and in a child forked later.

    Attributes:
        time_listeners: See :class:`icedb_log.store.store_clock.TellsTime`.
    """

    def __init__(
        self, bucket: str, options: S3Options, *, scratch_prefix: str = "", clock: Clock | None = None
    ) -> None:
        """Describe a bucket; nothing is sent.

        Args:
            bucket: Its name.
            options: How to reach it.
            scratch_prefix: Where :meth:`probe` may write: empty, or ending with ``/``.
            clock: For the waits after a 409 and between deletes, and for the names of scratch objects.
        """
        self.time_listeners: list[Callable[[int], None]] = []
        self._bucket = bucket
        self._options = options
        self._scratch_prefix = check_folder_prefix(scratch_prefix)
        self._clock = clock or SystemClock()
        self._where = f"bucket {bucket} at {options.endpoint_url or 'AWS'}"
        self._pace = DeletePace(self._clock)
        self._lock = threading.Lock()
        self._clients: S3Clients | None = None

    def probe(self) -> None:
        """Check access, then conditional writes. Raises Unavailable, UnsupportedFormat, InvalidRequest."""
        self.list_page(self._scratch_prefix, limit=1)
        probe_conditional_writes(self, self._scratch_prefix, scratch_id=self._clock.new_id(), name=self._where)

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Read an object. Raises NotFound, PreconditionFailed, Unavailable."""
        check_key(key)
        answer, body = self._read(key, _condition(if_match))
        return StoredObject(info_of(key, answer, size_bytes=len(body)), body)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read a part of an object. Raises NotFound, PreconditionFailed, Unavailable, InvalidRequest."""
        check_key(key)
        check_byte_range(start, length)
        if length:
            arguments = {"Range": f"bytes={start}-{start + length - 1}", **_condition(if_match)}
            try:
                answer, body = self._read(key, arguments)
            except InvalidRequest as error:
                if not is_beyond_the_end(error.__cause__):
                    raise
            else:
                return part_of(key, answer, body, start=start, length=length)
        # A range of nothing cannot be asked for, and an answer of 416 does not describe the object. Servers disagree
        # about the form of an ETag in a conditional HEAD, so the answer's is compared here.
        info = self.head(key)
        if if_match is not None and info.etag != if_match:
            raise PreconditionFailed(f"{key}: {self._where}: its ETag is another; list and read again")
        if length and info.size_bytes > start:
            raise Unavailable(f"{key}: {self._where}: was replaced while it was read; read it again")
        return StoredObject(info, b"")

    def head(self, key: str) -> ObjectInfo:
        """Read an object's metadata. Raises NotFound, Unavailable."""
        check_key(key)
        try:
            answer = self._call("head_object", key, Key=key)
        except NotFound:
            # A HEAD has no body that says whose 404 it is: that of a bucket that is gone, or of a proxy, is the same.
            # A listing raises then.
            self.list_page(key, limit=1)
            raise
        return info_of(key, answer, size_bytes=int(answer["ContentLength"]))

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create an object. Raises PreconditionFailed, CommitOutcomeUnknown, Unavailable (surely not written)."""
        return self._write_once(key, body, {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace an object that still has ``etag``. Raises as :meth:`put_if_absent` does."""
        return self._write_once(key, body, {"IfMatch": etag})

    def put(self, key: str, body: bytes) -> str:
        """Write an object whatever is there. Raises Unavailable, InvalidRequest."""
        check_key(key)
        return strip_quotes(self._call("put_object", key, Key=key, Body=body)["ETag"])

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List one page; the token is S3's continuation token. Raises Unavailable."""
        check_page_limit(limit)
        resume = {} if token is None else {"ContinuationToken": token}
        answer = self._call("list_objects_v2", prefix, Prefix=prefix, MaxKeys=limit, **resume)
        objects = tuple(
            info_of(entry["Key"], entry, size_bytes=int(entry["Size"])) for entry in answer.get("Contents", ())
        )
        next_token = answer["NextContinuationToken"] if answer.get("IsTruncated") else None
        return ObjectPage(objects, next_token, self._server_time_ms(answer))

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List the folders right below ``prefix``, all pages. Raises Unavailable, InvalidRequest."""
        check_folder_prefix(prefix)
        folders: list[str] = []
        resume: dict[str, str] = {}
        while True:
            answer = self._call("list_objects_v2", prefix, Prefix=prefix, Delimiter="/", **resume)
            found = (entry["Prefix"][len(prefix) : -1] for entry in answer.get("CommonPrefixes", ()))
            folders.extend(folder for folder in found if folder)
            if not answer.get("IsTruncated"):
                return tuple(sorted(folders))
            resume = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects, 1,000 in a request, some requests at once. Raises Unavailable if nothing was answered."""
        asked = dict.fromkeys(keys)
        possible = [key for key in asked if is_listable(key)]
        impossible = [FailedDelete(key, "S3 can hold no object with this key") for key in asked if not is_listable(key)]
        if not possible:
            return DeleteReport((), tuple(impossible))
        report = delete_in_batches(possible, self._delete_once, pace=self._pace, clock=self._clock)
        return DeleteReport(report.deleted, (*report.failed, *impossible))

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """End multipart uploads that were never finished: their parts are paid for, and no listing shows them.

        A rule of the bucket (``AbortIncompleteMultipartUpload``) does the same without us. One that somebody else ends
        or finishes meanwhile does not count. A part that is just arriving may stay behind after the abort: then the
        upload is listed again, and the next call ends it. Raises Unavailable; what could be ended is.
        """
        try:
            stale = [each for each in self._list_uploads(prefix) if each["Initiated"].timestamp() * 1000 < before_ms]
        except IceDBError as error:
            if is_unknown_request(error.__cause__):
                return 0
            raise
        count = 0
        first_error: IceDBError | None = None
        for upload in stale:
            try:
                self._call("abort_multipart_upload", upload["Key"], Key=upload["Key"], UploadId=upload["UploadId"])
                count += 1
            except (NotFound, UnsupportedFormat):
                continue
            except IceDBError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return count

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Copy an object to a local file. Raises NotFound, Unavailable."""
        info = self.head(key)
        try:
            if info.size_bytes <= SINGLE_REQUEST_BYTES:
                stored = self.get(key)
                path.write_bytes(stored.body)
                return stored.info
            with moving_in_parts(self._where, key):
                self._open_clients().retrying.download_file(self._bucket, key, str(path), Config=TRANSFER)
            copied_bytes = path.stat().st_size
        except OSError as error:
            raise Unavailable(
                f"{path}: cannot hold the copy of {key}: {error.strerror or error}; free space, or give permission"
            ) from error
        if copied_bytes != info.size_bytes:
            raise Unavailable(f"{key}: {self._where}: {copied_bytes} of {info.size_bytes} bytes came; try again")
        return info

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Copy a local file to an object. Raises InvalidRequest if it cannot be read, Unavailable."""
        del may_move  # to a server it has to be copied
        check_key(key)
        try:
            size_bytes = path.stat().st_size
            if size_bytes <= SINGLE_REQUEST_BYTES:
                self.put(key, path.read_bytes())  # one request, and its answer: as a batch or a log file is written
                return
            with moving_in_parts(self._where, key):
                self._open_clients().retrying.upload_file(str(path), self._bucket, key, Config=TRANSFER)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be uploaded as {key}: {error.strerror or error}") from error
        info = self.head(key)
        if info.size_bytes != size_bytes:
            raise Unavailable(
                f"{key}: {self._where}: holds {info.size_bytes} of {size_bytes} bytes of {path}; upload it again"
            )

    def copy_from(self, source: "S3ObjectStore", info: ObjectInfo, key: str) -> ObjectInfo:
        """Let the server copy an object; as ``upload``, for fresh keys only.

        Some servers ignore the condition of a copy, and they disagree about the form of an ETag in the HEAD that
        precedes a copy in parts, which therefore has none: the caller looks at the source's ETag afterwards.

        Args:
            source: Where it is.
            info: What it was when it was looked at.
            key: The new key.

        Raises:
            NotFound: The source is gone.
            PreconditionFailed: The source has another ETag, says the server.
            Unavailable: No usable answer, or no access to the source.
        """
        check_key(key)
        client = self._open_clients().retrying
        place = {"Bucket": source._bucket, "Key": info.key}  # noqa: SLF001 - one of us
        with explained(self._where, f"{place['Bucket']}/{info.key}"):
            if info.size_bytes <= SINGLE_COPY_BYTES:
                client.copy_object(Bucket=self._bucket, Key=key, CopySource=place, CopySourceIfMatch=info.etag)
            else:
                client.copy(place, self._bucket, key)
        return self.head(key)

    def uri(self, key: str) -> str:
        """Return ``s3://bucket/key``."""
        return f"s3://{self._bucket}/{key}"

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return a URL that reads an object without credentials (SigV4 in the query string)."""
        seconds = check_presign_ms(expires_ms)
        sign, what = self._open_clients().once.generate_presigned_url, {"Bucket": self._bucket, "Key": key}
        try:
            return str(sign("get_object", Params=what, ExpiresIn=seconds))
        except BotoCoreError as error:
            raise Unavailable(
                f"{self._where}: cannot sign a URL for {key}: {error}; give the service credentials"
            ) from error

    def _open_clients(self) -> S3Clients:
        """Return this process's clients."""
        with self._lock:
            if self._clients is None or self._clients.process_id != os.getpid():
                self._clients = make_clients(self._bucket, self._options, where=self._where, on_answer=self._tell_time)
            return self._clients

    def _call(self, operation: str, key: str, **arguments: Any) -> dict[str, Any]:
        """Send a request that may be repeated."""
        client = self._open_clients().retrying
        with explained(self._where, key):
            answer: dict[str, Any] = getattr(client, operation)(Bucket=self._bucket, **arguments)
        return answer

    def _read(self, key: str, arguments: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        """Read an object or a part of it to the end: boto3 repeats the request, but not a body that breaks off."""
        plain = self._open_clients().plain
        if plain is not None and "IfMatch" in arguments:
            found = plain.read(key, etag=arguments["IfMatch"], byte_range=arguments.get("Range"))
            if found is not None:
                return found
        for _ in range(READ_ATTEMPTS - 1):
            answer = self._call("get_object", key, Key=key, **arguments)
            with contextlib.suppress(BotoCoreError), contextlib.closing(answer["Body"]) as stream:
                return answer, stream.read()
        answer = self._call("get_object", key, Key=key, **arguments)
        with explained(self._where, key), contextlib.closing(answer["Body"]) as stream:
            return answer, stream.read()

    def _write_once(self, key: str, body: bytes, condition: dict[str, str]) -> str:
        """Send a conditional write, again only after a 409 (W2)."""
        check_key(key)
        client = self._open_clients().once
        for wait_ms in (*CONFLICT_WAITS_MS, None):
            try:
                answer = client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
            except (BotoCoreError, ClientError) as error:
                if not is_conflict_in_progress(error) or wait_ms is None:
                    raise explain_conditional_write(error, where=self._where, key=key) from error
                self._clock.sleep_ms(wait_ms)
            else:
                if not answer.get("ETag"):
                    raise CommitOutcomeUnknown(f"{key}: {self._where}: answered without an ETag; read it back (W2)")
                return strip_quotes(answer["ETag"])
        raise AssertionError  # the last attempt returns or raises

    def _delete_once(self, keys: Sequence[str]) -> BatchAnswer:
        """Send one DeleteObjects, once: boto3's own back-off would hide what the pace has to see."""
        request = {"Objects": [{"Key": key} for key in keys], "Quiet": False}
        try:
            answer = self._open_clients().once.delete_objects(Bucket=self._bucket, Delete=request)
        except (BotoCoreError, ClientError) as error:
            return read_delete_refusal(error, keys, where=self._where)
        return read_delete_answer(keys, answer, where=self._where)

    def _list_uploads(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield all uploads, page after page; the markers name the last one of the page before."""
        resume: dict[str, str] = {}
        while True:
            answer = self._call("list_multipart_uploads", prefix, Prefix=prefix, **resume)
            yield from answer.get("Uploads", ())
            following = {"KeyMarker": answer.get("NextKeyMarker"), "UploadIdMarker": answer.get("NextUploadIdMarker")}
            before, resume = resume, {name: value for name, value in following.items() if value}
            # A server that says there is more and does not say where from would be asked for ever.
            if not answer.get("IsTruncated") or not resume or resume == before:
                return

    def _server_time_ms(self, answer: dict[str, Any]) -> int:
        """Return the server's clock as its answer shows it, in whole seconds."""
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        try:
            return date_ms_of(headers)
        except ValueError as error:
            raise UnsupportedFormat(
                f"{self._where}: answers carry no usable Date header ({headers.get('date', '')!r}), by which ages are "
                "told; let the proxy in between pass it on"
            ) from error

    def _tell_time(self, http_response: Any, **_ignored: object) -> None:
        """Tell who listens what time an answer shows: the middle of the second that it names."""
        if self.time_listeners:
            with contextlib.suppress(ValueError):
                now_ms = date_ms_of(http_response.headers) + 500
                for tell in self.time_listeners:
                    tell(now_ms)


def _condition(etag: str | None) -> dict[str, str]:
    """Return the condition of a read."""
    return {} if etag is None else {"IfMatch": etag}

"""Requests to S3: the boto3 clients of one process, and files that are moved in parts.

Owns how often a request is sent, and that each try that failed is reported, whatever boto3 makes of it afterwards; also
a body that breaks off while it is read: a download in parts asks again then, and says so to nobody. A child that is
forked needs clients of its own: connections must not be shared.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Any, Final
from xml.etree import ElementTree as ET  # nosec B405

import boto3
import botocore.session
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    ReadTimeoutError,
)
from botocore.loaders import Loader, create_loader
from botocore.response import StreamingBody
from botocore.utils import determine_content_length

from icedb_log.errors import InvalidRequest
from icedb_log.store.plain_reads import PlainReads
from icedb_log.store.request_costs import Price, report_answer
from icedb_log.store.request_failures import Operation, Reason, reason_of_status, report_failure
from icedb_log.store.s3_options import S3Options
from icedb_log.store.s3_quirks import (
    ENDPOINT_CONFIG,
    add_content_md5,
    explain_read,
    explained,
    is_lasting,
    names_no_error,
    parse_time,
)

READ_ATTEMPTS: Final = 3
"""How often a read, listing or unconditional write is sent, with boto3's back-off between."""

MAX_CONNECTIONS: Final = 32
"""Connections that a client keeps open."""

SINGLE_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Up to this size a file is moved by one request; above it in parts, by ``TRANSFER_THREADS`` threads."""

TRANSFER_THREADS: Final = 4

_KEYS: Final = "icedb_keys"
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_DEFAULT_REGION: Final = "us-east-1"
TRANSFER: Final = TransferConfig(
    multipart_threshold=2 * SINGLE_REQUEST_BYTES,
    multipart_chunksize=2 * SINGLE_REQUEST_BYTES,
    max_concurrency=TRANSFER_THREADS,
    preferred_transfer_client="classic",
)

_BY_VERB: Final[tuple[tuple[str, Operation], ...]] = (
    ("List", "list"),
    ("Delete", "delete"),
    ("Get", "read"),
    ("Head", "read"),
)
_FREE: Final = ("Delete", "Abort")
_READS: Final = ("Get", "Head")
_SENT: Final = "icedb_sent_bytes"
_UNREACHABLE: Final = (EndpointConnectionError, ProxyConnectionError)
_TIMEOUTS: Final = (ConnectTimeoutError, ReadTimeoutError)


@dataclass(frozen=True, slots=True)
class S3Clients:
    """The clients of one process.

    Attributes:
        process_id: Whose they are.
        retrying: A boto3 client that repeats requests, :data:`READ_ATTEMPTS` times at the most.
        once: One that never does.
        plain: Reads without boto3, where the bucket can be read so.
    """

    process_id: int
    retrying: Any
    once: Any
    plain: PlainReads | None


def make_clients(bucket: str, options: S3Options, *, where: str, on_answer: Callable[..., None]) -> S3Clients:
    """Make this process's clients; nothing is sent.

    Args:
        bucket: What is read without boto3.
        options: How to reach it.
        where: The store in words.
        on_answer: Called with ``http_response=`` and more for each answer.

    Raises:
        InvalidRequest: No client can be made of these options.
    """
    try:
        botocore_session = botocore.session.get_session()
        models = _load_models(botocore_session.get_config_variable("data_path"))
        botocore_session.register_component("data_loader", models)
        # dateutil, which botocore takes for times, makes most of what a listing of 1,000 keys costs.
        botocore_session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parse_time)
        session = boto3.session.Session(
            botocore_session=botocore_session,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            region_name=options.region,
        )
        region = session.region_name or (_DEFAULT_REGION if options.endpoint_url else None)
        retrying, once = (
            session.client(
                "s3", region_name=region, endpoint_url=options.endpoint_url, config=_make_config(options, attempts)
            )
            for attempts in (READ_ATTEMPTS, 1)
        )
    except (ValueError, BotoCoreError, Boto3Error) as error:
        raise InvalidRequest(
            f"{where}: cannot be reached so: {error}; check ICEDB_S3_ENDPOINT and ICEDB_S3_REGION"
        ) from error
    for client in (retrying, once):
        client.meta.events.register("before-call.s3", _measure_body)
        client.meta.events.register("needs-retry.s3", _report_answer)
        client.meta.events.register("needs-retry.s3", _report_failed_try)
        client.meta.events.register("after-call.s3.GetObject", _watch_body)
        client.meta.events.register("after-call.s3", on_answer)
        client.meta.events.register("before-parse.s3.ListObjectsV2", _parse_contents)
        client.meta.events.register("before-parse.s3.DeleteObjects", _parse_deleted)
        client.meta.events.register("provide-client-params.s3.DeleteObjects", _take_keys)
        client.meta.events.register("before-call.s3.DeleteObjects", _write_keys)
    if options.endpoint_url is not None:
        once.meta.events.register("before-call.s3.DeleteObjects", add_content_md5)
    ca_bundle = botocore_session.get_config_variable("ca_bundle")
    return S3Clients(os.getpid(), retrying, once, PlainReads.like(retrying, session, bucket, ca_bundle=ca_bundle))


@cache
def _load_models(data_path: str | None) -> Loader:
    """Return botocore's descriptions of services, parsed once for a process and not once for each store: 0.1 s."""
    return create_loader(data_path)


@contextlib.contextmanager
def moving_in_parts(where: str, key: str) -> Iterator[None]:
    """Raise what a failed upload or download in parts (``Config=TRANSFER``) means; OSErrors of the file as they are.

    Raises:
        NotFound: The object is not there.
        InvalidRequest: The call is wrong.
        Unavailable: The store did not answer.
    """
    with explained(where, key):
        try:
            yield
        except Boto3Error as error:
            # boto3 wraps what S3 answered, and keeps it as the context.
            inner = error.__context__ if isinstance(error.__context__, ClientError) else error
            raise explain_read(inner, where=where, key=key) from error


def _make_config(options: S3Options, attempts: int) -> Config:
    """Return the settings of a client that sends each request at most ``attempts`` times."""
    return Config(
        signature_version="s3v4",
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=MAX_CONNECTIONS,
        **({} if options.endpoint_url is None else ENDPOINT_CONFIG),
    )


def _reason_of(error: BaseException) -> Reason:
    """Return what kind of failure an exception on the way to S3 is."""
    if isinstance(error, _TIMEOUTS):
        return "timeout"
    return "unreachable" if isinstance(error, _UNREACHABLE) else "broken"


def _parse_contents(*, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse the objects of a listing in a fifth of botocore's time; what is unusual, and the rest, is left to it."""
    said, rest = _cut_out("Contents", response_dict)
    with contextlib.suppress(KeyError, ValueError):
        contents = [
            {
                "Key": entry["Key"],
                "ETag": entry["ETag"],
                "Size": int(entry["Size"]),
                "LastModified": parse_time(entry["LastModified"]),
            }
            for entry in said
        ]
        if contents:
            customized_response_dict["Contents"], response_dict["body"] = contents, rest


def _take_keys(*, params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Keep the keys of a delete from botocore, but for one: to check and write one takes it thirty times as long."""
    objects = params["Delete"]["Objects"]
    context[_KEYS] = [each["Key"] for each in objects]
    return {**params, "Delete": {**params["Delete"], "Objects": objects[:1]}}


def _write_keys(*, params: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    """Write the request with all keys, before anybody makes a checksum of it. What became of each is to be said."""
    objects = "".join(f"<Object><Key>{escape(key, quote=False)}</Key></Object>" for key in context[_KEYS])
    params["body"] = f'<Delete xmlns="{_NAMESPACE}">{objects}<Quiet>false</Quiet></Delete>'.encode()


def _parse_deleted(*, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Parse which keys are gone, a thousand at once, in the same way."""
    said, rest = _cut_out("Deleted", response_dict)
    with contextlib.suppress(KeyError):
        deleted = [{"Key": entry["Key"]} for entry in said]
        if deleted:
            customized_response_dict["Deleted"], response_dict["body"] = deleted, rest


def _cut_out(tag: str, response_dict: Mapping[str, Any]) -> tuple[list[dict[str, str]], bytes]:
    """Return what the entries of an answer say that follow each other, and the body without them; else no entries.

    By the same parser as botocore: expat bounds what entities grow to, and the server is trusted anyway.
    """
    body: bytes = response_dict["body"]
    name, opening, closing = (form.encode() for form in (f"<{tag}", f"<{tag}>", f"</{tag}>"))
    begin, end = body.find(opening), body.rfind(closing) + len(closing)
    head = body[: max(0, begin)].lower()
    if response_dict["status_code"] != HTTPStatus.OK or begin < 0 or (b"encoding=" in head and b"utf-8" not in head):
        return [], body
    if name.lower() in head or name in body[end:]:  # with attributes or spaces in their tags
        return [], body
    try:
        entries = ET.fromstring(b"<Result>%s</Result>" % body[begin:end])  # noqa: S314 # nosec B314
    except ET.ParseError:
        return [], body
    if {entry.tag for entry in entries} != {tag}:
        return [], body
    return [{part.tag: part.text or "" for part in entry} for entry in entries], body[:begin] + body[end:]


def _report_failed_try(*, operation: Any, response: Any = None, caught_exception: Any = None, **_: Any) -> None:
    """Botocore calls it after each try; what it returns says nothing about a retry, what it raises ends them."""
    reason = _reason_of(caught_exception) if caught_exception is not None else None
    if reason is None and response is not None:
        reason = reason_of_status(response[0].status_code)
        if reason is None and names_no_error(operation.name, response[1]):
            reason = "broken"
    if reason is not None:
        kind: Operation = next((kind for verb, kind in _BY_VERB if operation.name.startswith(verb)), "write")
        report_failure(kind, reason)
    if caught_exception is not None and is_lasting(caught_exception):
        raise caught_exception


def _report_answer(*, operation: Any, request_dict: Mapping[str, Any], response: Any = None, **_: Any) -> None:
    """Tell what an answer costs. Botocore calls it after each try."""
    if response is None:
        return
    name: str = operation.name
    price: Price = "delete" if name.startswith(_FREE) else "get" if name.startswith(_READS) else "put"
    is_listing = name.startswith("List")
    key = str(request_dict.get("query_string", {}).get("prefix", "")) if is_listing else request_dict["url_path"]
    if keys := request_dict["context"].get(_KEYS):
        key = keys[0]
    answer = response[0]
    received = answer.headers.get("Content-Length") if name == "GetObject" else len(answer.content)
    report_answer(
        price,
        key,
        status=answer.status_code,
        is_listing=is_listing,
        sent_bytes=_count_sent(request_dict),
        received_bytes=int(received or 0),
    )


def _measure_body(*, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Note how large a body is that is a stream: once it is sent, that cannot be seen any more."""
    context[_SENT] = determine_content_length(params["body"])


def _count_sent(request_dict: Mapping[str, Any]) -> int:
    """Return the bytes in the body of a request."""
    body = request_dict["body"]
    return len(body) if isinstance(body, bytes) else request_dict["context"].get(_SENT) or 0


class _WatchedBody(StreamingBody):  # type: ignore[misc]  # botocore has no types
    """A body that reports when it breaks off."""

    def read(self, amt: int | None = None) -> bytes:
        """Read on. Raises what the base class does."""
        try:
            return bytes(super().read(amt))
        except BotoCoreError as error:
            report_failure("read", _reason_of(error))
            raise


def _watch_body(*, parsed: dict[str, Any], **_: Any) -> None:
    body = parsed.get("Body")
    if isinstance(body, StreamingBody):
        parsed["Body"] = _WatchedBody(body._raw_stream, body._content_length)  # noqa: SLF001 - no way to wrap one

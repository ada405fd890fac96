"""The boto3 clients of one process: what they are made of, and how often each sends a request.

A child that is forked needs clients of its own: connections must not be shared.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import boto3
import botocore.session
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from icedb_log.errors import InvalidRequest
from icedb_log.store.s3_answers import parse_time
from icedb_log.store.s3_deletes import add_content_md5
from icedb_log.store.s3_failures import report_failed_tries
from icedb_log.store.s3_options import S3Options
from icedb_log.store.s3_plain_reads import PlainReads, find_target

READ_ATTEMPTS: Final = 3
"""How often a read, listing or unconditional write is sent, with boto3's back-off between."""

MAX_CONNECTIONS: Final = 32
"""Connections that a client keeps open."""

_DEFAULT_REGION: Final = "us-east-1"


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
        report_failed_tries(client)
        client.meta.events.register("after-call.s3", on_answer)
    if options.endpoint_url is not None:
        once.meta.events.register("before-call.s3.DeleteObjects", add_content_md5)
    ca_bundle = botocore_session.get_config_variable("ca_bundle")
    target = find_target(retrying, session, bucket, ca_bundle=ca_bundle)
    return S3Clients(os.getpid(), retrying, once, None if target is None else PlainReads(target))


def _make_config(options: S3Options, attempts: int) -> Config:
    """Return the settings of a client that sends each request at most ``attempts`` times."""
    extra: dict[str, Any] = {}
    if options.endpoint_url is not None:
        extra = {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    return Config(
        signature_version="s3v4",
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=MAX_CONNECTIONS,
        **extra,
    )

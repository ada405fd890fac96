"""An S3 server for development and tests: moto over HTTP, with conditional writes that are atomic.

Owns one process on a loopback port. moto answers each conditional request rightly, but checks and writes in two
steps, so that racing requests can both win; here every request is read whole and then answered under one lock.
Objects live in memory and are gone when the process ends. It must never face a network.

Run it with ``python -m icedb_local.dev_s3 --port 9000 --bucket warehouse``; SIGTERM and Ctrl-C end it.
"""

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from icedb_log.errors import InvalidRequest
from waitress import create_server
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9000
SERVER_THREADS: Final = 16
"""Requests that are read and written at once; they are answered one at a time."""

MAX_BODY_BYTES: Final = 1024**3
"""Largest request body: one part of an upload, not a whole object."""

_CONDITIONS: Final = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
_WRITES: Final = ("PUT", "POST")


class OneAtATime:
    """A WSGI application that reads each request whole and then answers it under one lock."""

    def __init__(self, app: WSGIApplication, *, ignores_conditions: bool = False) -> None:
        """Wrap an application.

        Args:
            app: The application that is not atomic by itself.
            ignores_conditions: Drop ``If-Match`` and ``If-None-Match`` from writes, as some S3-compatible
                servers do: the negative control for the probe of conditional writes.
        """
        self._app = app
        self._ignores_conditions = ignores_conditions
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        # moto decodes the path once more than a server should: a key with '%' or '?' would become another.
        environ["PATH_INFO"] = environ.get("PATH_INFO", "").replace("%", "%25").replace("?", "%3F")
        if self._ignores_conditions and environ["REQUEST_METHOD"] in _WRITES:
            for name in _CONDITIONS:
                environ.pop(name, None)
        with self._lock:
            answer = self._app(environ, start_response)
            try:
                return [b"".join(answer)]
            finally:
                close: Callable[[], None] | None = getattr(answer, "close", None)
                if close is not None:
                    close()


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """Reads requests, and waits for no body where there is none.

    boto3 announces every PUT with ``Expect: 100-continue``; waitress answers that and then waits for a body even
    if its length is 0, for ever.
    """

    def parse_header(self, header_plus: bytes) -> None:
        """Read the header, forgetting an expectation without a body."""
        super().parse_header(header_plus)
        if not self.content_length and not self.chunked:
            self.expect_continue = False


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection that reads requests so."""

    parser_class = _Parser


def make_app(buckets: Sequence[str], *, ignores_conditions: bool = False) -> OneAtATime:
    """Build the S3 application with empty buckets.

    Args:
        buckets: Names of the buckets to create.
        ignores_conditions: As for :class:`OneAtATime`.

    Raises:
        InvalidRequest: A bucket's name is none.
    """
    # moto asks for these when it is imported; the values are never checked.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "dev")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "dev")
    from moto.core.exceptions import ServiceException  # noqa: PLC0415 - heavy; `--help` answers without it
    from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415
    from moto.s3.models import s3_backends  # noqa: PLC0415

    backend = s3_backends["123456789012"]["global"]
    for bucket in dict.fromkeys(buckets):
        try:
            backend.create_bucket(bucket, "us-east-1")
        except ServiceException as error:
            raise InvalidRequest(
                f"bucket {bucket!r} cannot be created: {error.message}; use 3 to 63 of a-z, 0-9, '.' and '-'"
            ) from error
    return OneAtATime(create_backend_app("s3"), ignores_conditions=ignores_conditions)


def make_server(app: WSGIApplication, port: int, *, host: str = HOST) -> Any:
    """Bind a server to a loopback port (0: any free one); it serves when its ``run()`` is called.

    Raises:
        OSError: The port is taken.
    """
    # A burst of more requests than threads is normal here, not worth a warning each.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = create_server(
        app,
        host=host,
        port=port,
        threads=SERVER_THREADS,
        max_request_body_size=MAX_BODY_BYTES,
        connection_limit=1024,
        ident="icedb-dev-s3",
    )
    server.channel_class = _Channel
    return server


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or Ctrl-C. Returns the exit code."""
    options = _parse(arguments)
    try:
        app = make_app(options.bucket, ignores_conditions=options.ignore_conditions)
    except InvalidRequest as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        server = make_server(app, options.port, host=options.host)
    except OSError as error:
        sys.stderr.write(
            f"{options.host}:{options.port}: cannot listen: {error.strerror}; "
            "end the other server, or choose another --port (0 for any free one)\n"
        )
        return 1
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    port = server.effective_port
    if options.port_file is not None:
        _write_whole(options.port_file, f"{port}\n")
    sys.stdout.write(f"S3 at http://{options.host}:{port} with buckets {', '.join(options.bucket)}, in memory\n")
    sys.stdout.flush()
    server.run()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m icedb_local.dev_s3",
        description="An S3 server for development and tests: in memory, on loopback, with atomic conditional writes.",
    )
    parser.add_argument("--host", default=HOST, help="where to listen; another address only inside a container")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="loopback port; 0 for any free one")
    parser.add_argument("--port-file", type=Path, help="file to write the port to once the server listens")
    parser.add_argument("--bucket", action="append", required=True, help="bucket to create; may be repeated")
    parser.add_argument(
        "--ignore-conditions",
        action="store_true",
        help="ignore If-Match and If-None-Match on writes, to see that such a store is refused",
    )
    return parser.parse_args(arguments)


def _leave(_signal_number: int, _frame: FrameType | None) -> None:
    """End the server's loop; waitress finishes what it is answering."""
    raise SystemExit(0)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody sees it half written."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())

"""The development S3 server, which also counts requests, and writes many small objects at once when it is asked to.

``python -m bench.counting_s3 --port-file FILE``. With ``--latency-ms 15`` each request waits as long as on S3, side by
side with the others, before it is answered. Objects come by ``POST /-/fill``, past HTTP and past moto's own door:
a PUT each would take longer than what is measured. ``POST /-/counts`` returns how often each operation was asked for
since the last time.
"""

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs
from urllib.request import Request, urlopen
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from icedb_local.dev_s3 import make_app, make_server

from bench.servers import START_LIMIT_S, running_server, tell_port

BUCKET: Final = "bench"


class CountingApp:
    """Counts what a WSGI application is asked for, and answers below ``/-/`` by itself.

    Args:
        app: The application.
        latency_s: How long each request waits, in its own thread.
    """

    def __init__(self, app: WSGIApplication, *, latency_s: float = 0.0) -> None:
        self._app = app
        self._latency_s = latency_s
        self._counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()  # of bodies
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        if path.startswith("/-/"):
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            answer = json.dumps(self._fill(body) if path == "/-/fill" else self._take_counts()).encode()
            start_response("200 OK", [("Content-Length", str(len(answer)))])
            return [answer]
        if self._latency_s:
            time.sleep(self._latency_s)
        parts = list(self._app(environ, start_response))
        with self._lock:
            self._counts[_operation(environ)] += 1
            self._bytes["received"] += int(environ.get("CONTENT_LENGTH") or 0)
            self._bytes["sent"] += sum(map(len, parts)) if environ["REQUEST_METHOD"] != "HEAD" else 0
        return parts

    def _take_counts(self) -> dict[str, dict[str, int]]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            sizes, self._bytes = self._bytes, Counter()
        return {"operations": dict(counts), "bytes": dict(sizes)}

    def _fill(self, body: bytes) -> int:
        from moto.s3.models import s3_backends  # noqa: PLC0415 - moto is loaded by then

        backend, wanted = s3_backends["123456789012"]["global"], json.loads(body)
        for key in wanted["keys"]:
            backend.put_object(BUCKET, key, b"x" * wanted["size_bytes"])
        return len(wanted["keys"])


def _operation(environ: WSGIEnvironment) -> str:
    method, query = environ["REQUEST_METHOD"], parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    if method == "POST":
        return "delete_objects" if "delete" in query else "post"
    is_bucket = environ["PATH_INFO"].strip("/") == BUCKET
    return "list" if method == "GET" and is_bucket else method.lower()


def running_counting_s3(folder: Path, *, latency_ms: int = 0) -> AbstractContextManager[str]:
    """Run the server; its address comes out."""
    return running_server(["bench.counting_s3", "--latency-ms", str(latency_ms)], folder)


def fill(endpoint: str, keys: Sequence[str], *, size_bytes: int) -> None:
    """Write objects, all of the same size."""
    _ask(endpoint, "fill", {"keys": list(keys), "size_bytes": size_bytes})


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server was asked for.

    Attributes:
        operations: How often each.
        received_bytes: In bodies of requests.
        sent_bytes: In bodies of answers.
    """

    operations: Mapping[str, int]
    received_bytes: int
    sent_bytes: int


def take_counts(endpoint: str) -> Mapping[str, int]:
    """Return how often each operation was asked for since the last call."""
    return take_all(endpoint).operations


def take_all(endpoint: str) -> Counts:
    """Return what was asked for since the last call, with its bytes."""
    answer = _ask(endpoint, "counts", {})
    return Counts(answer["operations"], answer["bytes"].get("received", 0), answer["bytes"].get("sent", 0))


def _ask(endpoint: str, what: str, body: object) -> Any:
    request = Request(f"{endpoint}/-/{what}", json.dumps(body).encode(), method="POST")
    with urlopen(request, timeout=START_LIMIT_S) as answer:
        return json.load(answer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server until it is told to end."""
    parser = argparse.ArgumentParser(prog="python -m bench.counting_s3", description=__doc__)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--latency-ms", type=int, default=0, help="how long each request waits")
    options = parser.parse_args(arguments)
    server = make_server(CountingApp(make_app([BUCKET]), latency_s=options.latency_ms / 1000), 0)
    tell_port(server.effective_port, options.port_file)
    server.run()


if __name__ == "__main__":
    main()

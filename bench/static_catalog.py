"""An Iceberg REST catalog that does nothing: one table, ``icedb.events``, whose metadata is a file that never changes.

``python -m bench.static_catalog --metadata FILE --port-file FILE``: what a native table has in place of our gateway, so
that both are asked in the same way. The metadata is read once, when it is asked for first. Standard library only.
"""

import argparse
import json
from contextlib import AbstractContextManager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bench.servers import running_server, tell_port

_TABLES: Final = "/v1/namespaces/icedb/tables"
_ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)


class _Answers:
    def __init__(self, metadata: Path) -> None:
        self._metadata = metadata
        self._said: dict[str, Any] = {
            "/v1/config": {"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS},
            "/v1/namespaces": {"namespaces": [["icedb"]]},
            "/v1/namespaces/icedb": {"namespace": ["icedb"], "properties": {}},
            _TABLES: {"identifiers": [{"namespace": ["icedb"], "name": "events"}]},
        }

    @cached_property
    def _table(self) -> bytes:
        return b'{"metadata-location":"file://%s","config":{},"metadata":%s}' % (
            str(self._metadata).encode(),
            self._metadata.read_bytes(),
        )

    def find(self, path: str) -> bytes | None:
        """Return the answer to a request; ``None``: there is none."""
        if path == f"{_TABLES}/events":
            return self._table
        return json.dumps(self._said[path]).encode() if path in self._said else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    answers: _Answers

    def do_GET(self) -> None:
        """Answer."""
        body = self.answers.find(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body or b"")

    do_HEAD = do_GET  # noqa: N815 - as http.server calls it

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def running_static_catalog(metadata: Path, folder: Path) -> AbstractContextManager[str]:
    """Run one; its address comes out."""
    return running_server(["bench.static_catalog", "--metadata", str(metadata)], folder)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", type=Path, required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    asked = parser.parse_args()
    _Handler.answers = _Answers(asked.metadata)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    tell_port(server.server_port, asked.port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()

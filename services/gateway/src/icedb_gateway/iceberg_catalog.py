"""The Iceberg REST catalog: all tables in one namespace, to be read. Documented in ``docs/iceberg.md``.

Source: ``open-api/rest-catalog-open-api.yaml`` of Apache Iceberg. Owns the mapping between its requests and tables;
what a table's metadata says, and when it is written, is :mod:`icedb_gateway.published`'s. Whoever asks is looked at
before what is asked, and a table that is hidden is answered as one that is not there. Every answer that is no error can
be had again: nothing here changes a table, and every request that would is refused with what to use in its place.

Clients show the message of an error as it stands and decide by the status whether they try again (429 and 503 only).
Errors of ``/v1/oauth/tokens`` have the form of RFC 6749 instead.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    TableNotFound,
    Unauthenticated,
    Unavailable,
)
from icedb_log.keys import TABLE_NAME
from icedb_log.table.table_config import table_not_found
from icedb_log.units import SECOND_MS
from icedb_service.access.access_file import Identity, Verb
from icedb_service.access.credentials import HttpAccess
from icedb_service.access.guard import RateLimited
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from icedb_gateway.metrics import Operation
from icedb_gateway.published import PublishedTable, PublishedTables
from icedb_gateway.requests import GatewayParts
from icedb_gateway.vended_keys import SESSION_TOKEN, Vended, VendedKeys

JSON: Final = "application/json"
NAMESPACE: Final = "icedb"
"""The one that has all tables."""
FORBIDDEN: Final = 403
_RETRY_AFTER_MS: Final = 1000
_BY_ERROR: Final[tuple[tuple[type[IceDBError], str, int], ...]] = (
    (RateLimited, "TooManyRequestsException", 429),
    (Overloaded, "ServiceUnavailableException", 503),
    (Unavailable, "ServiceUnavailableException", 503),
    (CommitConflict, "ServiceUnavailableException", 503),
    (Fenced, "ServiceUnavailableException", 503),
    (CommitOutcomeUnknown, "ServiceUnavailableException", 503),
    (PermissionDenied, "ForbiddenException", FORBIDDEN),
    (Unauthenticated, "NotAuthorizedException", 401),
    (NotFound, "NoSuchTableException", 404),
    (InvalidRequest, "BadRequestException", 400),
    (HaltError, "InternalServerError", 500),
)
"""A halted table stays so until a person has looked; its words say why."""
_RETRIED: Final = (429, 503)
_UNAUTHENTICATED: Final = 401


class IcebergError(IceDBError):
    """An answer that is an error. What the caller does: what its message says.

    Args:
        kind: Iceberg's name of it, e.g. ``NoSuchTableException``.
        message: For people.
        status: HTTP status.
    """

    def __init__(self, kind: str, message: str, *, status: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


class TokenError(IceDBError):
    """A refused exchange of credentials for a token. What the caller does: mend its credentials.

    Args:
        code: ``invalid_request``, ``invalid_client`` or ``unsupported_grant_type`` (RFC 6749, section 5.2).
        message: For people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_only() -> IcebergError:
    """Return what every request gets that would change something."""
    return IcebergError(
        "ForbiddenException",
        "this catalog is read-only: IceDB's log says what a table is. Rows come by ingest (HTTP, gRPC, `icedb ingest`) "
        "and go by `icedb delete`; tables are made by `icedb table create`, changed by `icedb table alter` and dropped "
        "by `icedb table drop`",
        status=FORBIDDEN,
    )


def require_namespace(name: str) -> None:
    """Raise IcebergError for another namespace than the one there is."""
    if name != NAMESPACE:
        shown = name.replace("\x1f", ".")[:80]
        raise IcebergError(
            "NoSuchNamespaceException",
            f"namespace {shown!r} does not exist: all tables are in {NAMESPACE!r}",
            status=404,
        )


def describe(error: Exception) -> tuple[int, str]:
    """Return the status and Iceberg's type that an error becomes."""
    if isinstance(error, IcebergError):
        return error.status, error.kind
    if isinstance(error, TokenError):
        return (_UNAUTHENTICATED if error.code == "invalid_client" else 400), error.code
    for kind, name, status in _BY_ERROR:
        if isinstance(error, kind):
            return status, name
    return 500, "InternalServerError"


def error_response(error: Exception) -> Response:
    """Return the answer that an error becomes. What is not ours is answered without its words."""
    status, kind = describe(error)
    message = str(error) if isinstance(error, IceDBError) else "an internal error; the gateway's log has the reason"
    headers = {}
    if status in _RETRIED:
        retry_after_ms = error.retry_after_ms if isinstance(error, Overloaded) else _RETRY_AFTER_MS
        headers["Retry-After"] = str(max(1, -(-retry_after_ms // SECOND_MS)))
    if status == _UNAUTHENTICATED:
        headers["WWW-Authenticate"] = 'Bearer realm="icedb"'
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "code": status}}
    if isinstance(error, TokenError):
        body = {"error": kind, "error_description": message}
    return Response(orjson.dumps(body), status, headers, JSON)


ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
)
"""What clients are told that there is; those that write learn from it that they cannot."""

NOTES: Final = "icedb"
"""Where handlers leave in a scope what the log and the metrics say of a request."""
MAX_FORM_BYTES: Final = 64 * 1024
MAX_PAGE: Final = 1000
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_FIRST_FAILURE: Final = 500
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name
_TYPE: Final = "bearer"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name
_DELEGATION: Final = "x-iceberg-access-delegation"
_VENDED: Final = "vended-credentials"
_S3: Final = "s3://"
_KEY_ID: Final = "s3.access-key-id"


def note(request: Request, operation: Operation, **fields: str) -> None:
    """Say what a request is, for its line in the log and its metrics."""
    request.scope.setdefault(NOTES, {}).update({"operation": operation, **fields})


class IcebergCatalog:
    """The handlers.

    Args:
        parts: Of the gateway.
        published: What is published of each table.
        keys: Makes the keys that are given to engines.
        s3_port: Where the gateway's S3 endpoint listens.
    """

    def __init__(self, parts: GatewayParts, published: PublishedTables, keys: VendedKeys, *, s3_port: int) -> None:
        settings = parts.settings
        self._parts = parts
        self._published = published
        self._keys = keys
        self._s3_port = s3_port
        self._guard = parts.guard.at("iceberg")
        self._access = HttpAccess(self._guard, max_requests=settings.http_max_connections)
        self._region = settings.region
        self._credentials = settings.gateway_iceberg_credentials
        self._s3_url = settings.gateway_iceberg_s3_url
        self._key_ttl_ms = settings.gateway_iceberg_key_ttl_ms
        self._form_timeout_s = settings.http_header_timeout_ms / SECOND_MS

    async def get_config(self, request: Request) -> Response:
        """Say what clients have to know first."""
        self._identify(request, "iceberg_config")
        return _json({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})

    async def post_token(self, request: Request) -> Response:
        """Exchange an identity and its token, as a client's id and secret, for the bearer token, which is the same."""
        note(request, "iceberg_token")
        form = await self._read_form(request)
        client_id, secret = _credentials_of(request, form)
        try:
            identity = self._guard.identify(authorization=f"Bearer {secret}")
        except Unauthenticated as error:
            raise TokenError("invalid_client", f"client_secret: {error}") from error
        self._guard.charge(identity)
        note(request, "iceberg_token", identity=identity.name)
        if self._guard.is_enforced and client_id not in ("", identity.name):
            raise TokenError("invalid_client", "client_id: is not the identity whose token the client_secret is")
        answer = {"access_token": secret, "token_type": _TYPE, "issued_token_type": _ACCESS_TOKEN}
        return _json(answer | ({"scope": form["scope"]} if "scope" in form else {}), {"Cache-Control": "no-store"})

    async def list_namespaces(self, request: Request) -> Response:
        """List the one namespace, which has none below it."""
        self._identify(request, "iceberg_list")
        parent = request.query_params.get("parent", "")
        if parent:
            require_namespace(parent)
        return _json({"namespaces": [] if parent else [[NAMESPACE]], "next-page-token": None})

    async def get_namespace(self, request: Request) -> Response:
        """Describe the namespace, or say that it is there (HEAD)."""
        self._identify(request, "iceberg_list")
        require_namespace(request.path_params["namespace"])
        if request.method == "HEAD":
            return Response(status_code=_NO_CONTENT)
        return _json({"namespace": [NAMESPACE], "properties": {}})

    async def list_tables(self, request: Request) -> Response:
        """List the tables that the caller may read, in pages if it asks for pages."""
        identity = self._identify(request, "iceberg_list")
        require_namespace(request.path_params["namespace"])
        after = request.query_params.get("pageToken")
        size = _page_size(request.query_params.get("pageSize"), is_paged=after is not None)
        names = [name for name in await self._readable(identity) if name > (after or "")]
        page = names if size is None else names[:size]
        body: dict[str, Any] = {"identifiers": [{"namespace": [NAMESPACE], "name": name} for name in page]}
        return _json(body | {"next-page-token": page[-1] if len(page) < len(names) else None})

    async def get_table(self, request: Request) -> Response:
        """Answer with a table's metadata as of now; with HEAD, whether it is there."""
        identity, name = await self._require(request, "iceberg_load")
        if request.method == "HEAD":
            await self._parts.reads.read(name, max_staleness_ms=self._parts.settings.gateway_staleness_ms)
            return Response(status_code=_NO_CONTENT)
        which = request.query_params.get("snapshots", "all")
        if which not in ("all", "refs"):
            raise InvalidRequest(f"snapshots={which[:40]!r}: use all or refs")
        table = await self._published.read(name)
        config = await self._config(request, identity, name, table)
        body: dict[str, Any] = {"metadata-location": table.metadata_uri, "config": config}
        if _KEY_ID in config:
            body["storage-credentials"] = [{"prefix": table.location, "config": config}]

        def render() -> tuple[bytes, str]:
            rendered = orjson.dumps({**body, "metadata": table.shown(refs_only=which == "refs")})
            return rendered, f'"{hashlib.sha256(rendered).hexdigest()[:32]}"'

        rendered, etag = await self._parts.reads.work.run_compute(render)
        headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
        known = request.headers.get("if-none-match", "")
        if etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return Response(None, _NOT_MODIFIED, headers)
        return Response(rendered, 200, headers, JSON)

    async def get_credentials(self, request: Request) -> Response:
        """Answer with a fresh key for a table, if keys are given."""
        identity, name = await self._require(request, "iceberg_load")
        table = await self._published.read(name)
        config = await self._vend(request, identity, name, table) if self._vends(table) else {}
        return _json({"storage-credentials": [{"prefix": table.location, "config": config}] if config else []})

    async def post_metrics(self, request: Request) -> Response:
        """Take a client's report about a scan, of which nothing is made."""
        await self._require(request, "iceberg_other")
        return Response(status_code=_NO_CONTENT)

    async def refuse_write(self, request: Request) -> Response:
        """Refuse what would change something."""
        self._identify(request, "iceberg_other")
        raise read_only()

    async def refuse_other(self, request: Request) -> Response:
        """Refuse what is not offered."""
        self._identify(request, "iceberg_other")
        raise IcebergError(
            "UnsupportedOperationException",
            f"{request.url.path[:200]}: is not offered here; /v1/config lists what is",
            status=404,
        )

    def _identify(self, request: Request, operation: Operation) -> Identity:
        """Return who asks for what is about no table."""
        note(request, operation)
        identity = self._access.recognise(request.scope)
        note(request, operation, identity=identity.name)
        self._guard.charge(identity)
        return identity

    async def _require(self, request: Request, operation: Operation) -> tuple[Identity, str]:
        """Return who asks and the table, if he may read it.

        Raises:
            IcebergError: No such namespace.
            NotFound: No such table, for him; names those that are close.
        """
        note(request, operation)
        identity = self._access.recognise(request.scope)
        name = request.path_params["table"]
        note(request, operation, identity=identity.name, table=name[:80])
        require_namespace(request.path_params["namespace"])
        self._guard.require(identity, Verb.READ, name)
        if not TABLE_NAME.fullmatch(name):
            raise table_not_found(name)
        return identity, name

    async def _readable(self, identity: Identity) -> list[str]:
        names = await self._parts.names.read()
        return [name for name in names if self._guard.allows(identity, Verb.READ, name)]

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that ended with an error."""
        name = request.path_params.get("table")
        if isinstance(error, TableNotFound) and error.table == name:
            known = await self._readable(self._access.recognise(request.scope))
            error = table_not_found(name, known)
        request.scope.setdefault(NOTES, {}).update(code=describe(error)[1], reason=str(error))
        return error_response(error)

    async def _config(self, request: Request, identity: Identity, name: str, table: PublishedTable) -> dict[str, str]:
        """Return what an engine needs to reach a table's files."""
        if self._credentials == "none" or not table.location.startswith(_S3):
            return {}
        asked = [each.strip().lower() for each in request.headers.get(_DELEGATION, "").split(",")]
        if self._vends(table) and _VENDED in asked:
            return await self._vend(request, identity, name, table)
        return {"client.region": self._region, "s3.region": self._region}

    def _vends(self, table: PublishedTable) -> bool:
        return self._credentials == "vended" and table.location.startswith(_S3)

    async def _vend(self, request: Request, identity: Identity, name: str, table: PublishedTable) -> dict[str, str]:
        """Return the gateway's S3 endpoint with a key for one table, whose files are held for as long as the key lasts.

        Keys end at whole halves of their time, so that answers within one half are the same, ETag and all, and a client
        that is told "not modified" has a key that lasts for half of it at least.
        """
        half_ms = self._key_ttl_ms // 2
        expires_ms = (self._parts.clock.now_ms() // half_ms + 2) * half_ms
        await self._published.hold(name, table, until_ms=expires_ms, ttl_ms=self._key_ttl_ms)
        pair = self._keys.issue(Vended(identity.name, name, expires_ms))
        refresh = f"v1/namespaces/{NAMESPACE}/tables/{name}/credentials"
        return {
            "client.region": self._region,
            "s3.region": self._region,
            # Without the slash ClickHouse's DataLakeCatalog looks for the metadata below the table's prefix twice.
            "s3.endpoint": f"{(self._s3_url or self._own_s3_url(request)).rstrip('/')}/",
            "s3.path-style-access": "true",
            _KEY_ID: pair.access_key_id,
            "s3.secret-access-key": pair.secret_access_key,
            "s3.session-token": SESSION_TOKEN,
            "s3.session-token-expires-at-ms": str(expires_ms),
            "client.refresh-credentials-endpoint": refresh,
        }

    def _own_s3_url(self, request: Request) -> str:
        host = request.url.hostname or self._parts.settings.gateway_host
        shown = f"[{host}]" if ":" in host else host
        return f"{request.url.scheme}://{shown}:{self._s3_port}"

    async def _read_form(self, request: Request) -> Mapping[str, str]:
        """Return the fields of a form. Raises TokenError: it is too large, too slow, or none."""
        body = b""
        try:
            async with asyncio.timeout(self._form_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > MAX_FORM_BYTES:
                        raise TokenError("invalid_request", f"the form has more than {MAX_FORM_BYTES} bytes")
        except TimeoutError:
            raise TokenError("invalid_request", "the form did not come in time") from None
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
        except ValueError:
            raise TokenError("invalid_request", "the body is no form (application/x-www-form-urlencoded)") from None


def _credentials_of(request: Request, form: Mapping[str, str]) -> tuple[str, str]:
    """Return a client's id and secret, from the form or from the header (RFC 6749, section 2.3.1)."""
    grant = form.get("grant_type", "client_credentials")
    if grant == _TOKEN_EXCHANGE:  # a client that renews its token; ours last until the access file ends them
        secret = form.get("subject_token", "")
        client_id = ""
    elif grant == "client_credentials":
        client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if not secret and scheme.lower() == "basic":
            try:
                client_id, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                raise TokenError("invalid_request", "the authorization header is not Basic and base64") from None
    else:
        raise TokenError("unsupported_grant_type", f"grant_type {grant[:80]!r}: use client_credentials")
    if not secret:
        raise TokenError("invalid_request", "client_secret is missing: it is the identity's token (docs/access.md)")
    return client_id, secret


def _page_size(text: str | None, *, is_paged: bool) -> int | None:
    """Return how many names a page has; ``None``: all of them."""
    if text is None:
        return MAX_PAGE if is_paged else None
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise InvalidRequest(f"pageSize={text[:40]!r}: use a number from 1")
    return min(int(text[:9]), MAX_PAGE)


def _json(value: object, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), 200, headers, JSON)


def make_app(catalog: IcebergCatalog) -> Starlette:
    """Return the application."""
    tables = "/v1/namespaces/{namespace}/tables"
    routes = [
        Route("/v1/config", catalog.get_config, methods=["GET"]),
        Route("/v1/oauth/tokens", catalog.post_token, methods=["POST"]),
        Route("/v1/namespaces", catalog.list_namespaces, methods=["GET"]),
        Route("/v1/namespaces/{namespace}", catalog.get_namespace, methods=["GET", "HEAD"]),
        Route(tables, catalog.list_tables, methods=["GET"]),
        Route(f"{tables}/{{table}}", catalog.get_table, methods=["GET", "HEAD"]),
        Route(f"{tables}/{{table}}/credentials", catalog.get_credentials, methods=["GET"]),
        Route(f"{tables}/{{table}}/metrics", catalog.post_metrics, methods=["POST"]),
        Route("/{path:path}", catalog.refuse_other, methods=["GET", "HEAD"]),
        Route("/{path:path}", catalog.refuse_write, methods=["POST", "PUT", "PATCH", "DELETE"]),
    ]
    handlers = {IceDBError: catalog.answer_error, HTTPException: _answer_other, Exception: catalog.answer_error}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _answer_other(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else _FIRST_FAILURE
    return error_response(IcebergError("UnsupportedOperationException", "no such request here", status=status))

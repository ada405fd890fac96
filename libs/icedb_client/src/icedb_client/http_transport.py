"""Sends to a front end over HTTP (``docs/ingest.md``): needs its address and a token, and no key of the bucket.

Owns how an offer becomes a request, and what each answer means. Every request may be repeated: a batch goes under its
id, or the key that stands for it. Must never say of a batch that it was refused if it may have been accepted: only the
problem document of a front end says so, never a status alone, which a proxy may have made.
"""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson
import urllib3
from icedb_log.clock import Clock, new_batch_id, parse_uuid7_ms
from icedb_log.errors import (
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    StoreRefused,
    TableHalted,
    TableNotFound,
    Unauthenticated,
    Unavailable,
)
from icedb_log.formats import FORMATS
from icedb_log.ingest.pressure import describe_failure, describe_halt
from icedb_log.ingest.quarantine import Kind, QuarantinedBatch
from icedb_log.keys import check_table_name
from icedb_log.store.store_clock import AlignedClock
from icedb_log.units import MINUTE_MS, SECOND_MS
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)
from urllib3.exceptions import HTTPError, InvalidHeader, ProtocolError, SSLError

from icedb_client.bodies import BatchBody
from icedb_client.settings import BearerToken, ClientSettings, require_private
from icedb_client.transport import (
    FIRST_POLL_MS,
    LONGEST_POLL_MS,
    CommitReport,
    EnqueuedBatch,
    Offer,
    make_enqueued,
    warn_once,
)

TERMS_MAX_AGE_MS: Final = MINUTE_MS
MAX_CONNECTIONS: Final = 32
CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
"""Longer than a front end waits for the store (``ICEDB_FRONTEND_ACK_TIMEOUT_MS``)."""
MAX_TRIES: Final = 4
"""Of a question. A batch is sent once: :class:`icedb_client.delivery.Delivery` decides whether to go on."""
_MAY_HELP: Final = retry_if_exception_type(Unavailable) & retry_if_not_exception_type(StoreRefused)
_GROWING: Final = wait_exponential(multiplier=0.1, max=5)
_ENCODINGS: Final = {"gz": "gzip", "zst": "zstd"}
_ADDRESS: Final = "--address or ICEDB_ADDRESS"
_PROBLEM: Final = "urn:icedb:problem:"
_OVERLOADED: Final = frozenset({"back-pressure", "busy", "rate-limited"})
"""Problems that say: nothing was accepted, send it again later."""
_PASSING: Final = frozenset({"unavailable", "failed", "body-timeout"})
"""Problems after which the batch may be accepted all the same."""
_KINDS: Final[Mapping[str, type[IceDBError]]] = {
    "unauthenticated": Unauthenticated,
    "not-authorized": Unauthenticated,
    "permission-denied": PermissionDenied,
    "not-found": NotFound,
    "table-halted": TableHalted,
}
"""Other problems: the call itself is wrong."""
_CREDENTIALS_HINT: Final = "; set ICEDB_TOKEN, ICEDB_TOKEN_FILE or a client certificate"
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_BAD_REQUEST: Final = 400
_PASSING_STATUSES: Final = (408, 425, 429)
_SERVER_FAILED: Final = 500


@dataclass(frozen=True, slots=True)
class Terms:
    """What a front end says of a table to its senders.

    Attributes:
        retry_window_ms: How old an id may be when its batch is sent.
        warning: Why batches may wait for long; empty: nothing is known.
        heard_ms: When, by the monotonic clock.
    """

    retry_window_ms: int
    warning: str
    heard_ms: int


class HttpTransport:
    """Sends to a front end, over connections that are kept. Thread-safe; a forked process makes connections of its own.

    Implements :class:`icedb_client.transport.Transport`. Redirects are not followed, and proxies of the environment are
    not used: a token goes to the address alone.

    Args:
        settings: Address, TLS and token.
        clock: Of this host.

    Attributes:
        clock: With the store's time as the front end says it: a sender's clock may be wrong by any amount, and an id
            with its time would be refused.
        time_listeners: Told of that time; see :class:`icedb_log.store.store_clock.TellsTime`.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self.time_listeners: list[Callable[[int], None]] = []
        self.clock: Clock = AlignedClock(clock, self, may_ask=False)
        self._address = str(settings.address)
        parts = urlsplit(self._address)
        self._path = parts.path
        self._is_tls = parts.scheme == "https"
        self._has_certificate = settings.client_cert_file is not None
        self._token = BearerToken(settings)
        if self._token.is_set and not self._is_tls:
            require_private(settings, self._address, parts.hostname or "", remedy=f"write https:// in {_ADDRESS}")
        self._options: dict[str, Any] = {"ssl_context": _make_tls(settings)} if self._is_tls else {}
        self._pools: tuple[int, urllib3.HTTPConnectionPool] | None = None
        self._terms: dict[str, Terms] = {}
        self._warned: set[str] = set()
        self._asking = Retrying(
            retry=_MAY_HELP,
            stop=stop_after_attempt(MAX_TRIES),
            wait=_pause_s,
            sleep=lambda pause_s: clock.sleep_ms(round(pause_s * SECOND_MS)),
            reraise=True,
        )

    def close(self) -> None:
        """Close the connections. May be called again; a closed one may be used again."""
        pools, self._pools = self._pools, None
        if pools is not None:
            pools[1].close()

    def list_tables(self) -> tuple[str, ...]:
        """Return the names of the tables that these credentials have a grant for, ascending.

        Raises:
            Unauthenticated: The token is missing or wrong.
            Unavailable: The front end did not answer.
            InvalidRequest: What answers is no front end.
        """
        return tuple(self._ask("GET", "/v1/tables", answers_with="tables")["tables"])

    def require_table(self, table: str) -> None:
        """Return if the table is there, and these credentials may send to it."""
        with suppress(Overloaded, TableHalted):
            self._find_terms(table)

    def begin(self, table: str, body: BatchBody, *, batch_id: str | None = None, key: str | None = None) -> Offer:
        """Choose the id; which one a key stands for is the front end's to know."""
        terms = self._find_terms(table)
        chosen = "" if key is not None else batch_id or new_batch_id(self.clock)
        if chosen:
            parse_uuid7_ms(chosen)  # the front end would take another text for a key
        return Offer(table, body, chosen, key, terms.retry_window_ms)

    def send(self, offer: Offer) -> EnqueuedBatch:
        """Post a batch, as it is."""
        table, body = offer.table, offer.body
        data_format, _, compression = body.format.partition(".")
        headers = {
            "Content-Type": FORMATS[data_format].media_types[0],
            "Idempotency-Key": offer.batch_id if offer.key is None else offer.key,
        }
        if compression:
            headers["Content-Encoding"] = _ENCODINGS[compression]
        try:
            accepted = self._request("POST", table, "", body.body, headers)
        except (NotFound, TableHalted, Overloaded):
            self._terms.pop(table, None)  # what was heard of the table holds no longer: ask before the next batch
            raise
        warning = str(accepted.get("warning", ""))
        warn_once(self._warned, table, warning)
        return make_enqueued(
            table,
            body,
            str(accepted["batch_id"]),
            is_woken=True,
            is_repeated=accepted.get("repeated") is True,
            warning=warning,
        )

    def wait_committed(self, table: str, batch_ids: Sequence[str], *, timeout_ms: int) -> CommitReport:
        """Ask for one batch after the other, each until it is decided: they are decided in about this order.

        Entries of quarantine come without payload, size and time: those lie in the bucket.
        """
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        found: dict[str, Mapping[str, Any]] = {}
        trouble: tuple[str, str] | None = None
        for batch_id in dict.fromkeys(batch_ids):
            pause_ms = FIRST_POLL_MS
            while True:
                found[batch_id] = self._find_status(table, batch_id)
                if found[batch_id]["status"] != "staged":
                    break
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if trouble is None or (left_ms > 0 and not trouble[0]):
                    trouble = self._find_trouble(table)
                if left_ms <= 0 or trouble[0]:
                    break
                self.clock.sleep_ms(min(pause_ms, left_ms))
                pause_ms = min(LONGEST_POLL_MS, pause_ms * 2)
        return _make_report(found, trouble or ("", ""))

    def _find_status(self, table: str, batch_id: str) -> Mapping[str, Any]:
        try:
            return self._asking(self._request, "GET", table, f"/{quote(batch_id, safe='')}")
        except NotFound:
            return {"status": "unknown"}

    def _find_trouble(self, table: str) -> tuple[str, str]:
        """Return why a table is halted, and why its flushes fail; empty where they do not."""
        try:
            warning = self._ask_terms(table).warning
        except TableHalted as error:
            return str(error).removeprefix(describe_halt(table, "")), ""
        except Overloaded:
            return "", ""
        return "", warning.removeprefix(describe_failure(table, ""))

    def _find_terms(self, table: str) -> Terms:
        terms = self._terms.get(table)
        if terms is not None and self.clock.monotonic_ms() - terms.heard_ms <= TERMS_MAX_AGE_MS:
            return terms
        return self._ask_terms(table)

    def _ask_terms(self, table: str) -> Terms:
        asking = self._asking.copy(retry=_MAY_HELP & retry_if_not_exception_type(Overloaded))  # its caller waits
        said = asking(self._request, "GET", table, "")
        for listener in self.time_listeners:
            listener(int(said["now_ms"]))
        terms = Terms(int(said["retry_window_ms"]), str(said.get("warning", "")), self.clock.monotonic_ms())
        self._terms[table] = terms
        return terms

    def _request(
        self, method: str, table: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Make one request about a table's batches, and return the document of its answer. Raises as :meth:`_ask`."""
        try:
            return self._ask(method, f"/v1/tables/{check_table_name(table)}/batches{path}", body, headers)
        except NotFound as error:
            if path:
                raise
            raise TableNotFound(str(error), table=table) from error.__cause__

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        answers_with: str = "table",
    ) -> Mapping[str, Any]:
        """Make one request, and return the document of its answer. Raises what its problem means."""
        url = self._path + path
        authorization = self._token.authorization()
        credentials = {} if authorization is None else {"Authorization": authorization}
        try:
            answer = self._pool().request(
                method, url, body=body, headers={**(headers or {}), **credentials}, retries=False, redirect=False
            )
        except HTTPError as error:
            raise self._explain_failure(error) from error
        document = _read_document(answer.data)
        if answer.status < _BAD_REQUEST and answers_with in document:
            return document
        raise self._explain_refusal(answer, document)

    def _pool(self) -> urllib3.HTTPConnectionPool:
        """Return the connections of this process: those of a parent that was forked are not to be shared."""
        pid, pools = os.getpid(), self._pools
        if pools is None or pools[0] != pid:
            timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
            pool = urllib3.connection_from_url(self._address, maxsize=MAX_CONNECTIONS, timeout=timeout, **self._options)
            pools = self._pools = pid, pool
        return pools[1]

    def _explain_refusal(self, answer: urllib3.BaseHTTPResponse, document: Mapping[str, Any]) -> IceDBError:
        kind, status = str(document.get("type", "")), answer.status
        retry_after_ms = _read_retry_after_ms(answer, document)
        if not kind.startswith(_PROBLEM):
            words = f"{self._address}: answered {status}, and not as a front end does"
            if status >= _SERVER_FAILED or status in _PASSING_STATUSES:
                return _unavailable(f"{words}: something in front of it may do so", retry_after_ms)
            return InvalidRequest(f"{words}: correct {_ADDRESS}")
        code, detail = kind.removeprefix(_PROBLEM), str(document.get("detail", status))
        if code in _OVERLOADED:
            return Overloaded(detail, retry_after_ms=SECOND_MS if retry_after_ms is None else retry_after_ms)
        if code in _PASSING:
            return _unavailable(detail, retry_after_ms)
        known = _KINDS.get(code, InvalidRequest)
        return known(detail + (_CREDENTIALS_HINT if known is Unauthenticated else ""))

    def _explain_failure(self, error: HTTPError) -> IceDBError:
        cause = error.__cause__ or error.__context__ or error  # what the system or OpenSSL said
        words = f"front end at {self._address}"
        if isinstance(error, SSLError):
            if isinstance(cause, ssl.SSLCertVerificationError):
                return StoreRefused(
                    f"{words}: its certificate is not trusted ({cause.verify_message}); set ICEDB_CA_FILE to the "
                    "certificate of the authority that signed it, and use a host name that it is for"
                )
            if any(each in str(cause) for each in _NO_TLS):
                return StoreRefused(f"{words} speaks no TLS: write http:// in {_ADDRESS}, or correct its port")
            if "alert" in str(cause).lower():
                return StoreRefused(f"{words} refuses the connection ({cause}){self._describe_certificate()}")
        hint = ""
        if isinstance(error, ProtocolError):
            hint = self._describe_certificate() if self._is_tls else "; if it speaks TLS, write https:// there"
        return Unavailable(f"{words} does not answer ({cause}); check that it runs, and {_ADDRESS}{hint}")

    def _describe_certificate(self) -> str:
        if self._has_certificate:
            return ""
        return "; it may ask for a client certificate: set ICEDB_CLIENT_CERT_FILE and ICEDB_CLIENT_KEY_FILE"


def _make_tls(settings: ClientSettings) -> ssl.SSLContext:
    name, file = "ICEDB_CA_FILE", settings.ca_file
    try:
        context = ssl.create_default_context(cafile=file)
        if settings.client_cert_file is not None:
            name, file = "ICEDB_CLIENT_CERT_FILE", settings.client_cert_file
            context.load_cert_chain(file, settings.client_key_file)
    except OSError as error:  # of OpenSSL, too
        raise InvalidRequest(f"{name} {file}: cannot be read ({type(error).__name__})") from error
    return context


def _read_document(body: bytes) -> Mapping[str, Any]:
    try:
        document = orjson.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _read_retry_after_ms(answer: urllib3.BaseHTTPResponse, document: Mapping[str, Any]) -> int | None:
    said = document.get("retry_after_ms")
    if isinstance(said, int):
        return said
    with suppress(InvalidHeader):
        pause_s = urllib3.Retry().get_retry_after(answer)
        return None if pause_s is None else round(pause_s * SECOND_MS)
    return None


def _unavailable(words: str, retry_after_ms: int | None) -> Unavailable:
    error = Unavailable(words)
    error.retry_after_ms = retry_after_ms
    return error


def _pause_s(state: RetryCallState) -> float:
    error = None if state.outcome is None else state.outcome.exception()
    asked_ms = error.retry_after_ms if isinstance(error, Unavailable) else None
    return max(_GROWING(state), (asked_ms or 0) / SECOND_MS)


def _make_report(found: Mapping[str, Mapping[str, Any]], trouble: tuple[str, str]) -> CommitReport:
    def ids(status: str) -> tuple[str, ...]:
        return tuple(batch_id for batch_id, said in found.items() if said["status"] == status)

    def entry(batch_id: str, kind: Kind, reason: str) -> QuarantinedBatch:
        said = found[batch_id]
        return QuarantinedBatch(
            batch_id=batch_id,
            reason=reason,
            payload_key="",
            size_bytes=0,
            quarantined_ms=0,
            kind=kind,
            row_count=said.get("quarantined_rows"),
            retry_id=said.get("retried_as"),
        )

    halted, failing = trouble if ids("staged") else ("", "")
    return CommitReport(
        committed=ids("committed"),
        quarantined=tuple(entry(each, "batch", found[each].get("reason", "")) for each in ids("quarantined")),
        waiting=ids("staged"),
        bad_rows=tuple(
            entry(each, "rows", found[each].get("reason", ""))
            for each in ids("committed")
            if found[each].get("quarantined_rows")
        ),
        unknown=ids("unknown"),
        conflicts=tuple(
            entry(each, "conflict", f"other content was accepted under this id {said['conflicts']} times")
            for each, said in found.items()
            if said.get("conflicts")
        ),
        halted=halted,
        failing=failing,
    )

"""TLS and mTLS of the servers, from the settings ``ICEDB_TLS_…``: for gRPC, and for HTTP by asyncio.

Certificates are taken up anew when their files change, for new connections. Files that are wrong then are logged, and
those before go on. TLS 1.2 is the oldest that is spoken.
"""

import ssl
import threading
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest

from icedb_service.logs import get_logger
from icedb_service.settings import ServiceSettings

LOOK_MS: Final = 1000
_Stamp = tuple[tuple[str, int, int], ...]


def ssl_context(settings: ServiceSettings, *, clock: Clock) -> ssl.SSLContext | None:
    """Return how HTTP is encrypted; ``None``: it is not.

    Give it to uvicorn as ``ssl_context_factory=lambda *_: context``.

    Raises:
        InvalidRequest: A file cannot be read, is no certificate, or the key is another's.
    """
    if settings.tls_cert_file is None:
        return None
    return _RenewedContext.make(_Files(settings, clock))


def server_credentials(settings: ServiceSettings, *, clock: Clock) -> Any | None:
    """Return ``grpc.ServerCredentials``; ``None``: the port is not encrypted. Needs the extra ``grpc``.

    Raises:
        InvalidRequest: A file cannot be read, is no certificate, or the key is another's.
    """
    if settings.tls_cert_file is None:
        return None
    import grpc  # noqa: PLC0415 - workers have none

    files = _Files(settings, clock)
    files.check()

    def make() -> Any:
        return grpc.ssl_server_certificate_configuration(
            [(files.key.read_bytes(), files.cert.read_bytes())],
            root_certificates=files.client_ca.read_bytes() if files.client_ca is not None else None,
        )

    def renew() -> Any | None:
        """Return the new configuration, or nothing: then gRPC goes on with the one that it has."""
        return make() if files.has_changed() else None

    return grpc.dynamic_ssl_server_credentials(make(), renew, require_client_authentication=files.client_ca is not None)


def read_expiry_s(cert_file: Path) -> float:
    """Return when a certificate ends, unix time in seconds; 0 if the file cannot be read."""
    try:
        from cryptography import x509  # noqa: PLC0415 - only those who encrypt load it

        certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    except (OSError, ValueError):
        return 0.0
    return certificate.not_valid_after_utc.timestamp()


class _Files:
    """The files of the settings; tells when they have changed, and are right. Thread-safe."""

    def __init__(self, settings: ServiceSettings, clock: Clock) -> None:
        self.cert = Path(settings.tls_cert_file or "")
        self.key = Path(settings.tls_key_file or "")
        self.client_ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._stamp = self._look()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise InvalidRequest unless they fit together."""
        self.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def load(self, context: ssl.SSLContext) -> None:
        """Put them into a context. Raises InvalidRequest with the file and what is wrong."""
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # whatever this machine's OpenSSL would take besides
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"ICEDB_TLS_CERT_FILE={self.cert}, ICEDB_TLS_KEY_FILE={self.key}: {_reason(error)}"
            ) from None
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise InvalidRequest(f"ICEDB_TLS_CLIENT_CA_FILE={self.client_ca}: {_reason(error)}") from None

    def has_changed(self) -> bool:
        """Whether there are other files than the last time, and they can be used."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._looked_ms < LOOK_MS:
                return False
            self._looked_ms = now_ms
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            try:
                self.check()
            except InvalidRequest as error:
                get_logger().error("tls_files_broken", error=str(error), mitigation="those before go on")
                return False
            get_logger().info("tls_files_loaded", cert=str(self.cert))
            return True

    def _look(self) -> _Stamp:
        """Return what changes when one of them does."""
        there = [path for path in (self.cert, self.key, self.client_ca) if path is not None and path.exists()]
        return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_ino) for path in there)


class _LoggedHandshake(ssl.SSLObject):
    """Says in one line why a caller did not get in, e.g. one that speaks no TLS."""

    def do_handshake(self) -> None:
        """Shake hands."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            get_logger().info("tls_handshake_failed", reason=error.reason or type(error).__name__)
            raise


class _RenewedContext(ssl.SSLContext):
    """Looks at its files before each connection."""

    sslobject_class = _LoggedHandshake
    _files: _Files

    @classmethod
    def make(cls, files: _Files) -> "_RenewedContext":
        """Return a context with these files."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        files.load(context)
        context._files = files
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection, with the files as they are now."""
        if self._files.has_changed():
            self._files.load(self)
        return super().wrap_bio(*args, **kwargs)


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; give one without")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a certificate and its key in PEM ({error.reason or error})"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)

"""How a service gets its guard: from the access file of its settings, or an open one where that is safe."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.hosts import is_loopback

from icedb_service.access.guard import AccessGuard
from icedb_service.access.metrics import AccessMetrics, Door
from icedb_service.access.rate_limits import RateLimits
from icedb_service.logs import get_logger
from icedb_service.settings import ServiceSettings
from icedb_service.tls import read_expiry_s


def open_guard(
    settings: ServiceSettings,
    *,
    clock: Clock,
    metrics: AccessMetrics,
    door: Door = "grpc",
    hosts: Sequence[str] = (),
) -> AccessGuard:
    """Return the guard of a process. Says once in the log whether access is enforced.

    Args:
        settings: Of the service.
        clock: For ages, times in tokens and rates.
        metrics: Where refusals are counted; one for each registry.
        door: What asks first; see :meth:`AccessGuard.at`.
        hosts: The addresses that the process serves callers on, without ports.

    Raises:
        InvalidRequest: The access file is wrong; or there is none, and an address is not a loopback one.
    """
    if settings.tls_cert_file is not None:
        metrics.certificate_expiry.set_function(partial(read_expiry_s, Path(settings.tls_cert_file)))
    if settings.access_file is not None:
        from icedb_service.access.source import AccessSource  # noqa: PLC0415 - keys and JWTs take a second to load

        source = AccessSource(Path(settings.access_file), clock=clock, metrics=metrics)
        get_logger().info("access_enforced", path=settings.access_file)
        if settings.tls_cert_file is None and not all(map(is_loopback, hosts)):
            get_logger().warning(
                "tokens_without_tls",
                hosts=list(hosts),
                mitigation="set ICEDB_TLS_CERT_FILE, or encrypt in front",
            )
        return AccessGuard(source, limits=RateLimits(clock), metrics=metrics, door=door)
    open_to = [host for host in hosts if not is_loopback(host)]
    if open_to and not settings.open_access:
        raise InvalidRequest(
            f"ICEDB_ACCESS_FILE is not set, and others reach {open_to[0] or 'every address'}: everybody could read "
            "and write every table. Set ICEDB_ACCESS_FILE (docs/access.md), listen on 127.0.0.1, or say "
            "ICEDB_OPEN_ACCESS=true if only those you trust reach this port"
        )
    if hosts:
        get_logger().warning(
            "access_open",
            hosts=list(hosts),
            mitigation="keep others away, or set ICEDB_ACCESS_FILE",
        )
    return AccessGuard(metrics=metrics, door=door)

"""A whole front end: every endpoint, on one event loop in a thread of its own. Also the way to start one in a program.

Stops in this order: not ready any more, no new requests and streams, running ones end, groups of events are staged,
wake-ups are sent. What was acknowledged is durable at every moment of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from icedb_log.clock import Clock
from icedb_log.ingest.group_writer import GroupWriter
from icedb_log.ingest.staging import Acceptance
from icedb_log.store.store_clock import AlignedClock
from icedb_log.warehouse import Warehouse
from icedb_service.access.credentials import GrpcAccess, HttpAccess
from icedb_service.access.guard import Places
from icedb_service.endpoints import EndpointService
from icedb_service.grpc_server import GrpcServer
from pydantic import SecretStr

from icedb_ingest.frontend.async_gate import AsyncGate, Waker
from icedb_ingest.frontend.grpc_endpoint import GrpcEndpoint, start_grpc
from icedb_ingest.frontend.http_endpoint import HttpEndpoint, make_app
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import MISSING_AGE_MS, BatchBounds, BatchStatuses, StagingGate
from icedb_ingest.frontend.tables import Tables
from icedb_ingest.frontend.webhooks import GROUP_LINGER_MS, MAX_GROUP_BYTES, MAX_GROUP_ROWS, Credentials, EventGroups


def make_gate(
    warehouse: Warehouse,
    *,
    settings: FrontendSettings,
    clock: Clock,
    on_staged: Callable[[str], None],
    on_left: Callable[[Sequence[int]], object],
    on_copy: Callable[[int], object] = lambda _: None,
) -> StagingGate:
    """Return a staging gate that asks the store about tables and pressure. Arguments as of it and of its groups."""
    acceptance = Acceptance(
        warehouse, clock=clock, max_age_ms=settings.frontend_table_cache_ms, missing_age_ms=MISSING_AGE_MS
    )
    groups = GroupWriter(
        clock=clock,
        linger_ms=settings.frontend_linger_ms,
        puts=settings.frontend_store_threads,
        on_copy=on_copy,
        on_left=on_left,
    )
    bounds = BatchBounds(settings.batch_max_decoded_bytes, settings.batch_max_rows)
    return StagingGate(acceptance, clock=clock, on_staged=on_staged, groups=groups, bounds=bounds)


class Frontend(EndpointService[FrontendSettings, FrontendMetrics]):
    """A front end in this process. Start it, stop it; ``wake`` wakes the workers of a table."""

    what = "the front end"
    endpoint = "grpc"
    make_metrics = FrontendMetrics
    mitigation = "what was acknowledged is durable"
    only_reads = False

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: FrontendSettings,
        clock: Clock,
        wake: Callable[[str], object],
        metrics: FrontendMetrics | None = None,
    ) -> None:
        super().__init__(warehouse, settings=settings, clock=clock, metrics=metrics)
        self.grpc_port = 0
        self._aligned = AlignedClock(clock, warehouse.store, may_ask=False)  # I3: ids have the store's time
        self._waker = Waker(wake)
        self._gate = make_gate(
            warehouse,
            settings=settings,
            clock=self._aligned,
            on_staged=self._waker.ask,
            on_left=self.metrics.note_staged,
            on_copy=self._keep_copy,
        )
        self._grpc_server: GrpcServer | None = None
        self._on_copy: Callable[[int], object] | None = None

    def addresses(self) -> dict[str, str]:
        """Return where it is served."""
        return {"http": self.address_at(self.port), "grpc": f"{self._settings.frontend_host}:{self.grpc_port}"}

    def start(self) -> None:
        """Serve; returns when every endpoint listens. Raises as the base class does."""
        self._waker.start()
        super().start()

    def stop(self) -> None:
        """Stop in order. May be called again."""
        super().stop()
        self._gate.close()
        self._waker.stop()

    def _keep_copy(self, size_bytes: int) -> None:
        """Count what a group takes besides its bodies; called by threads."""
        if self._on_copy is not None:
            self._on_copy(size_bytes)

    async def _show_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        if self._grpc_server is not None:
            await self._grpc_server.show_health(is_serving=is_ready)

    async def _open(self, stack: AsyncExitStack) -> None:
        settings, clock = self._settings, self._aligned
        gate = AsyncGate(self._gate, settings=settings, metrics=self.metrics, clock=clock)
        self._on_copy = gate.keep_soon
        stack.push_async_callback(gate.close)
        groups = EventGroups(
            gate.accept,
            clock=clock,
            linger_ms=GROUP_LINGER_MS,
            max_rows=MAX_GROUP_ROWS,
            max_bytes=MAX_GROUP_BYTES,
        )
        stack.push_async_callback(groups.finish)
        servers: list[Awaitable[None]] = []

        async def stop_servers() -> None:
            """Both at once: each waits for its requests as long as the settings say."""
            gate.is_draining.set()
            await asyncio.gather(*servers)

        stack.push_async_callback(stop_servers)
        calls = Places("calls", setting="ICEDB_FRONTEND_MAX_CALLS", size=settings.frontend_max_calls)
        self._grpc_server = await start_grpc(GrpcEndpoint(gate, GrpcAccess(self._guard, calls)), settings, clock=clock)
        servers.append(self._grpc_server.stop(grace_ms=settings.drain_ms))
        endpoint = HttpEndpoint(
            gate,
            groups=groups,
            statuses=BatchStatuses(clock=clock),
            tables=Tables(self._gate.acceptance.warehouse, clock=clock),
            credentials=Credentials(
                secret=_reveal(settings.frontend_segment_secret),
                write_key=_reveal(settings.frontend_segment_write_key),
            ),
            health=self._health.checks(),
            access=HttpAccess(self._guard.at("http"), max_requests=settings.http_max_connections),
        )
        app = make_app(endpoint, access_log=settings.access_log, cors_origins=settings.frontend_cors_origins)
        http_server = await self._listen(app, "http_port")
        servers.append(http_server.stop())
        self.grpc_port, self.port = self._grpc_server.port, http_server.port


def _reveal(secret: SecretStr | None) -> bytes | None:
    return secret.get_secret_value().encode() if secret is not None else None

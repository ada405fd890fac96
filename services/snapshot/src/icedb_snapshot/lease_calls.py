"""AcquireLease, RenewLease, ReleaseLease: readers hold a table at a time (rule J4). The only calls that write.

What they write is the caller's lease, nothing else: :mod:`icedb_log.clean.lease_holding`.
"""

from collections import OrderedDict
from typing import Any, Final

import grpc
from icedb_log.clean.lease_holding import acquire_lease, release_lease, renew_lease
from icedb_log.clean.leases import FETCH_THREADS, MAX_HOLDER_CHARS, Lease, LeaseReader
from icedb_log.errors import InvalidRequest
from icedb_log.keys import check_table_name
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import ANYBODY, Identity, Verb

from icedb_snapshot.parts import ServiceParts
from icedb_snapshot.request_fields import check_time_ms

_HANDLER: Final = grpc.unary_unary_rpc_method_handler


class LeaseCalls:
    """Answers the calls about leases.

    Args:
        parts: What handlers share.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._access = parts.access
        self._readers: OrderedDict[str, LeaseReader] = OrderedDict()

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        lease = pb.Lease.SerializeToString
        return {
            "AcquireLease": _HANDLER(self.acquire, pb.AcquireLeaseRequest.FromString, lease),
            "RenewLease": _HANDLER(self.renew, pb.RenewLeaseRequest.FromString, lease),
            "ReleaseLease": _HANDLER(
                self.release, pb.ReleaseLeaseRequest.FromString, pb.ReleaseLeaseResponse.SerializeToString
            ),
        }

    async def acquire(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        """Take a lease that certainly holds. Each call takes one of its own.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table))
        self._check_ttl(request.ttl_ms)
        at_ms = check_time_ms("at_ms", request.at_ms) if request.HasField("at_ms") else None
        table, leases = parts.reads.tables.table(paths.name), self._reader_of(paths.name)
        holder = _name_holder(identity, context)
        lease = await parts.reads.work.run_blocking(
            paths.name,
            lambda: acquire_lease(
                parts.warehouse.store,
                paths,
                clock=parts.clock,
                ttl_ms=request.ttl_ms,
                at_ms=at_ms,
                holder=holder,
                reader=table.read_source().reader,
                leases=leases,
                max_leases=parts.settings.snapshot_max_leases,
            ),
        )
        return _to_wire(paths.name, lease)

    async def renew(self, request: pb.RenewLeaseRequest, context: Any) -> pb.Lease:
        """Let a lease last for ``ttl_ms`` from now on.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table))
        self._check_ttl(request.ttl_ms)
        lease = await parts.reads.work.run_blocking(
            paths.name,
            lambda: renew_lease(
                parts.warehouse.store, paths, request.lease_id, clock=parts.clock, ttl_ms=request.ttl_ms
            ),
        )
        return _to_wire(paths.name, lease)

    async def release(self, request: pb.ReleaseLeaseRequest, context: Any) -> pb.ReleaseLeaseResponse:
        """End a lease.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        paths = self._parts.warehouse.table(check_table_name(request.table))
        await self._parts.reads.work.run_blocking(
            paths.name, lambda: release_lease(self._parts.warehouse.store, paths, request.lease_id)
        )
        return pb.ReleaseLeaseResponse()

    def _check_ttl(self, ttl_ms: int) -> None:
        most_ms = self._parts.settings.snapshot_max_lease_ttl_ms
        if ttl_ms > most_ms:
            raise InvalidRequest(
                f"ttl_ms {ttl_ms} is more than {most_ms}, the most that this server gives "
                "(ICEDB_SNAPSHOT_MAX_LEASE_TTL_MS); renew the lease while it is needed"
            )

    def _reader_of(self, table: str) -> LeaseReader:
        reader = self._readers.setdefault(table, LeaseReader(fetch_threads=FETCH_THREADS))
        self._readers.move_to_end(table)
        while len(self._readers) > self._parts.settings.snapshot_max_tables:
            self._readers.popitem(last=False)
        return reader


def _name_holder(identity: Identity, context: Any) -> str:
    """Return who holds a lease, for people: its name, or where the call came from if nobody has to say a name."""
    name = str(context.peer()) if identity == ANYBODY else identity.name
    return "".join(character for character in name if character.isprintable())[:MAX_HOLDER_CHARS]


def _to_wire(table: str, lease: Lease) -> pb.Lease:
    return pb.Lease(table=table, lease_id=lease.lease_id, at_ms=lease.at_ms, expires_ms=lease.expires_ms)

"""On which address a gRPC server listens. Needs the extra ``grpc`` of this package."""

from typing import Any

from icedb_log.errors import Unavailable


def listen(server: Any, address: str, credentials: Any | None, *, remedy: str) -> int:
    """Let a server listen on an address, and return the port.

    Args:
        server: A gRPC server that is not started yet.
        address: Host and port; port 0: any that is free.
        credentials: Of the server; ``None``: no TLS.
        remedy: For the message: what to set, and to what.

    Raises:
        Unavailable: The address cannot be listened on.
    """
    try:
        port = int(server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address))
    except RuntimeError:
        port = 0
    if port == 0:
        raise Unavailable(
            f"cannot listen on {address}: the port is taken, or the host is not of this machine; {remedy}"
        )
    return port

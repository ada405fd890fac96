"""gRPC's health service, with a bound on those who watch it.

Health is open to whoever gets a connection, and each watch keeps a place among a server's calls for as long as its
caller likes. Without a bound strangers fill all places by watching.
"""

from typing import Any, Final

import grpc
from grpc_health.v1 import health

MAX_WATCHES: Final = 64
SHARE_OF_CALLS: Final = 4
"""At most every fourth place is a watch's."""
MAX_NAME_CHARS: Final = 200


class BoundedHealth(health.aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Answers checks, and so many watches at once.

    Args:
        max_calls: Calls that the server takes at once.
    """

    def __init__(self, *, max_calls: int) -> None:
        super().__init__()
        self._room = max(1, min(MAX_WATCHES, max_calls // SHARE_OF_CALLS))

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the name of the method in the protocol
        """Watch a service; RESOURCE_EXHAUSTED when too many do."""
        if len(request.service) > MAX_NAME_CHARS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is the name of no service")
        if self._room < 1:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many watch this server; ask with Check",
            )
        self._room -= 1
        try:
            await super().Watch(request, context)
        finally:
            self._room += 1

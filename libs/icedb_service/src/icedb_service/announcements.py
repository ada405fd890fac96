"""Commits as workers announce them through Redis, heard on an event loop; the contract is :mod:`icedb_log.wake_keys`.

An announcement saves a look at the store and decides nothing. So who listens is told whether it hears, and looks by
itself while it does not; when it hears again, something may have been missed. Must never keep a service from working
without Redis, nor load its client before somebody listens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any, Final, NoReturn

from icedb_log.hosts import redact_url
from icedb_log.names import COMMITS_CHANNEL
from icedb_log.units import SECOND_MS

from icedb_service.logs import get_logger

SILENCE_S: Final = 5.0
"""A Redis that says nothing for so long is asked whether it is there, and is away if it then says nothing as long."""
PAUSE_S: Final = 1.0
"""Between two tries to reach a Redis that is away."""


class CommitListener:
    """Hears commits. Use it from one event loop.

    Args:
        url: Of Redis.
        timeout_ms: Longest wait to connect, and for what is sent.
    """

    def __init__(self, url: str, *, timeout_ms: int) -> None:
        self._url = url
        self._timeout_ms = timeout_ms

    async def run(self, on_commit: Callable[[str], None], on_change: Callable[[bool], None]) -> NoReturn:
        """Listen until cancelled; a Redis that is away is tried again.

        Args:
            on_commit: Told the table of each commit; the text is whatever a sender has written.
            on_change: Told whether commits are heard from now on; each time, some may have been missed.
        """
        await asyncio.to_thread(import_module, "redis.asyncio")  # callers on this loop must not wait for it
        from redis.exceptions import RedisError  # noqa: PLC0415 - for those who listen

        hears: bool | None = None
        log = get_logger().bind(redis=redact_url(self._url))
        while True:
            problem = "it ended the connection"
            try:
                async for message in self._messages():
                    if message["type"] == "subscribe":
                        hears = True
                        log.info("commits_heard")
                        on_change(True)
                    elif message["type"] == "message":
                        on_commit(str(message["data"]))
            except (RedisError, OSError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {error}"
            if hears is not False:
                hears = False
                log.warning("commits_not_heard", problem=problem, mitigation="watched tables are read each interval")
                on_change(False)
            await asyncio.sleep(PAUSE_S)

    async def _messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what Redis says, over one connection. Raises what its client does, and TimeoutError if it is silent."""
        from redis.asyncio import Redis  # noqa: PLC0415 - as above
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        client = Redis.from_url(
            self._url,
            socket_connect_timeout=self._timeout_ms / SECOND_MS,
            socket_timeout=self._timeout_ms / SECOND_MS,
            retry=Retry(NoBackoff(), 0),  # a connection that is replaced in silence has missed something in silence
            decode_responses=True,
            encoding_errors="replace",
        )
        async with client, client.pubsub() as channel:
            await channel.subscribe(COMMITS_CHANNEL)
            is_asked = False
            while True:
                message = await channel.get_message(timeout=SILENCE_S)
                if message is not None:
                    is_asked = False
                    yield message
                elif is_asked:
                    raise TimeoutError(f"silent for {2 * SILENCE_S:g} s")
                else:
                    is_asked = True
                    await channel.ping()

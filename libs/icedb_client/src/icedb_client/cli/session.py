"""What every command starts from: the global options, and a client made of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from icedb_log.errors import NotFound

from icedb_client.client import Client, describe_unknown_table
from icedb_client.settings import load_client_settings


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """Options that stand before the command; ``None``: the environment decides."""

    store: str | None = None
    snapshot_address: str | None = None
    redis_url: str | None = None


@contextmanager
def open_client(context: typer.Context, *, table: str | None = None) -> Iterator[Client]:
    """Open a client for the length of a command.

    Args:
        context: The command's context.
        table: The table that the command is about: if it is unknown, names that are close are suggested.
    """
    options = context.find_root().obj or GlobalOptions()
    settings = load_client_settings(
        store=options.store, snapshot_address=options.snapshot_address, redis_url=options.redis_url
    )
    with Client(settings=settings) as client:
        try:
            yield client
        except NotFound as error:
            if table is None or settings.store is None:
                raise
            raise NotFound(describe_unknown_table(client, table, error)) from error

"""What every command starts from: the global options, and a client made of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import typer
from icedb_log.errors import IceDBError, NotFound

from icedb_client.cli.served_tables import is_served
from icedb_client.client import Client
from icedb_client.settings import load_client_settings

_TABLE_IN_MESSAGE: Final = re.compile(r"\btable '(?P<table>[a-z][a-z0-9_]{0,62})' does not exist")


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
            named = _TABLE_IN_MESSAGE.search(str(error))
            if named is None:
                raise
            raise NotFound(_describe_unknown_table(client, table or named["table"], error)) from error


def _describe_unknown_table(client: Client, table: str, error: NotFound) -> str:
    """Return what to tell a person who named an unknown table, with names that are close."""
    from difflib import get_close_matches  # noqa: PLC0415 - only on this path

    try:
        names = client.tables() if is_served(client) else client.warehouse.list_tables()
    except IceDBError:
        return str(error)
    close = get_close_matches(table, names, n=3, cutoff=0.5)
    if close:
        return f"table {table!r} does not exist; did you mean {' or '.join(close)}?"
    return str(error)

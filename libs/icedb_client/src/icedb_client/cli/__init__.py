"""The ``icedb`` command."""

from icedb_client.cli.app import main

__all__ = ["main"]

"""The ``icedb`` command."""

from icedb.cli.app import main

__all__ = ["main"]

"""Settings of the janitor. What is not here is shared with beat or with the other services."""

from typing import Annotated

from icedb_log.clean.orphans import DEFAULT_MAX_SHARE
from icedb_service.settings import ServiceSettings
from pydantic import Field


class JanitorSettings(ServiceSettings):
    """What the janitor needs to know. Grace periods belong to the tables, not to the service."""

    janitor_tables_at_once: Annotated[int, Field(ge=1, le=64)] = 4
    """Tables that one janitor process cleans side by side. More keep a slow table from holding up the others; each
    takes the memory of a plan (a table of a million dead files: below 1 GiB), and they share one core and the store's
    request rate. A thread that hangs in the store is lost until the process is restarted."""

    janitor_orphan_share: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_SHARE
    """Part of a table's bytes that may be orphans, 0 to 1; above it none is deleted until a person has looked whether
    the log is whole. Higher cleans up after large runs that were cut off by itself, lower notices a lost log sooner."""

"""Settings of the janitor. All of them are shared with beat or with the other services."""

from icedb_service.settings import ServiceSettings


class JanitorSettings(ServiceSettings):
    """What the janitor needs to know. Grace periods belong to the tables, not to the service."""

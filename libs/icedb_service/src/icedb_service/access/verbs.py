"""What can be done with a table, and who asks. Values only."""

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What somebody may do with a table."""

    READ = "read"
    APPEND = "append"
    MAINTAIN = "maintain"
    ERASE = "erase"


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who was recognised.

    Attributes:
        name: As the policy has it; fit for logs.
    """

    name: str


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key pair of the S3 gateway.

    Attributes:
        identity: Whose it is.
        secret: What signatures are made with; never logged.
    """

    identity: Identity
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey({self.identity.name})"


ANYBODY = Identity("anybody")
"""Everybody, where no policy is set."""

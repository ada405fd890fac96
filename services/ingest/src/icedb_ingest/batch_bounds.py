"""Settings that the doors and the workers of ingest share: how large a batch may be when it is decoded."""

from typing import Annotated

from icedb_log.units import MIB
from icedb_service.settings import ServiceSettings
from pydantic import Field


class BatchBoundSettings(ServiceSettings):
    """What is too large to be taken at all. The same for all services of ingest."""

    batch_max_decoded_mb: Annotated[int, Field(ge=1, le=512)] = 256
    """Largest batch after decompression, MiB: a door refuses it (413, INVALID_ARGUMENT), and what comes by another way
    goes to quarantine. Larger saves cutting; one task holds a whole batch, in up to twice its size besides what it
    spills: the ingest workers need four times as much in `ICEDB_TASK_MEMORY_MB`."""

    batch_max_rows: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000_000
    """Most rows of a batch, which very short rows reach before the bound of bytes. More takes more memory for each,
    however short it is."""

    @property
    def batch_max_decoded_bytes(self) -> int:
        """Largest batch after decompression, bytes."""
        return self.batch_max_decoded_mb * MIB

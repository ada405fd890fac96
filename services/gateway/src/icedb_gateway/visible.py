"""What clients see of a data file besides its bytes: its ETag and its time. Pure.

Neither may need the store: a listing of 1,000 keys would cost as many requests. A data file is never edited, and its
name never used again, so both follow from its marker: the same on every page, in every snapshot and at every replica.
"""

import hashlib
from typing import Final

from icedb_log.keys import file_time_ms
from icedb_log.model import FileMarker

_ETAG_BYTES: Final = 16


def etag_of(path: str, size_bytes: int) -> str:
    """Return the ETag of a data file, without quotes.

    It has the form of one that was uploaded in parts: clients do not take such a one for the MD5 of the content.
    """
    return f"{hashlib.blake2b(f'{path}:{size_bytes}'.encode(), digest_size=_ETAG_BYTES).hexdigest()}-1"


def modified_ms_of(marker: FileMarker) -> int:
    """Return when a data file was made: as its name says, or else as its log file says."""
    named_ms = file_time_ms(marker.path)
    return marker.created_ms if named_ms is None else named_ms

"""How large the pages of a Parquet file become, as each page says itself, before anything is decompressed.

A footer says how large its row groups are, and nobody has to believe it: a file of twenty kilobytes whose footer says
little can hold pages of two gigabytes, one for each column. What a reader allocates is what stands before each page, so
that is what is added up.
"""

from typing import Final

from icedb_log.parquet.pages import read_chunks, read_pages

from icedb_engine.errors import BatchRejected, BatchTooLarge

ENCRYPTED: Final = "an encrypted Parquet file cannot be read: send it without encryption"
MAX_PAGES: Final = 200_000
"""Pages of a batch; writers make them of 8 KiB and more."""


def check_pages(body: bytes, *, limit_bytes: int) -> None:
    """Return if the pages of a Parquet file are no larger than this together.

    Args:
        body: The whole file.
        limit_bytes: Of all pages without compression.

    Raises:
        BatchRejected: They are larger, or too many, or encrypted.
        ThriftError: The file is damaged.
    """
    total_bytes = page_count = 0
    for chunk in read_chunks(body):
        if chunk.is_encrypted:
            raise BatchRejected(ENCRYPTED)
        for page in read_pages(body, chunk):
            total_bytes += page.size_bytes
            page_count += 1
            if total_bytes > limit_bytes:
                raise BatchTooLarge(
                    f"the Parquet file has more than {limit_bytes} bytes without compression; send smaller batches"
                )
            if page_count > MAX_PAGES:
                raise BatchRejected(
                    f"the Parquet file has more than {MAX_PAGES} pages; let its writer make larger ones"
                )

"""Field ids that a writer has put into a Parquet schema. Pure.

Iceberg's writers, and others (Arrow before 6.0, Spark, if told so), number the columns of a file. Engines that speak
Iceberg look for columns by such numbers, and by names only in files that have none: files of somebody else's numbers
would be read wrongly. No data file that we write has any. Arrow keeps them a second time, in its own schema among the
key-value metadata, and readers that are made on it find them there, too.
"""

import base64
from collections.abc import Mapping
from typing import Final

from icedb_log.parquet.thrift import Shape, ThriftReader, each, struct

FIELD_ID: Final = 9
"""Number of the field of a schema element."""
ARROW_KEY: Final = "ARROW:schema"
_ARROW_FIELD: Final = b"PARQUET:field_id"
_SCHEMA, _KEY_VALUES = 2, 5
_SHAPE: Final[Shape] = {
    _SCHEMA: each(struct({FIELD_ID: ThriftReader.place})),
    _KEY_VALUES: each(struct({1: ThriftReader.text, 2: ThriftReader.text})),
}


def has_field_ids(footer: bytes) -> bool:
    """Return whether a footer has field ids.

    Args:
        footer: Its bytes, without the length and the magic bytes behind it.

    Raises:
        ThriftError: It is damaged.
    """
    found = ThriftReader(footer).read(_SHAPE)
    pairs = found.get(_KEY_VALUES, ())
    return any(found.get(_SCHEMA, ())) or keeps_field_ids({pair.get(1, ""): pair.get(2, "") for pair in pairs})


def keeps_field_ids(texts: Mapping[str, str]) -> bool:
    """Return whether the key-value metadata of a footer has field ids, where Arrow keeps its schema."""
    try:
        return _ARROW_FIELD in base64.b64decode(texts.get(ARROW_KEY, ""))
    except ValueError:  # no base64, or not even ASCII
        return False

"""Field ids that a writer has put into a Parquet schema. Pure.

Iceberg's writers, and others (Arrow before 6.0, Spark, if told so), number the columns of a file. Engines that speak
Iceberg look for columns by such numbers, and by names only in files that have none: files of somebody else's numbers
would be read wrongly. No data file that we write has any. Arrow keeps them a second time, in its own schema among the
key-value metadata, and readers that are made on it find them there, too.
"""

import base64
from collections.abc import Mapping
from typing import Final

FIELD_ID: Final = 9
"""Number of the field of a schema element."""
ARROW_KEY: Final = "ARROW:schema"
_ARROW_FIELD: Final = b"PARQUET:field_id"


def keeps_field_ids(texts: Mapping[str, str]) -> bool:
    """Return whether the key-value metadata of a footer has field ids, where Arrow keeps its schema."""
    try:
        return _ARROW_FIELD in base64.b64decode(texts.get(ARROW_KEY, ""))
    except ValueError:  # no base64, or not even ASCII
        return False

"""The Arrow type of each SQL type, as the native engine hands rows over and as data files have them."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

ARROW_TYPES: Final[Mapping[str, Any]] = {
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
}

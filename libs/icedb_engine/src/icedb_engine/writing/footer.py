"""What the footer of a data file says about its origin."""

import json
from collections.abc import Sequence
from typing import Final, Literal

FILE_FORMAT: Final = "1"
FileKind = Literal["flush", "merge", "delete", "rewrite"]
"""Which job wrote a data file; a ``merge_query`` runs in merges."""


def make_footer(
    *, table: str, partition: str, commit_id: str, kind: FileKind, inputs: Sequence[str] = ()
) -> dict[str, str]:
    """Return the key-value metadata of a data file's Parquet footer.

    Args:
        table: Name of the table.
        partition: Encoded partition path; empty without partitions.
        commit_id: Id of the commit that makes the file live.
        kind: Which job wrote it.
        inputs: Keys of the data files that were read; a flush reads none.
    """
    footer = {
        "icedb.format": FILE_FORMAT,
        "icedb.table": table,
        "icedb.partition": partition,
        "icedb.commit": commit_id,
        "icedb.kind": kind,
    }
    if kind != "flush":
        footer["icedb.inputs"] = json.dumps(list(inputs))
    return footer

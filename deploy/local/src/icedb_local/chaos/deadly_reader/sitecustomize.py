"""Makes readers of batches crash over those that say so, in each process of Python that has this folder on its path.

Only a chaos run's ingest worker and the processes of its tasks do (:mod:`icedb_local.chaos.chaos_layout`). The batches
are valid ones: nothing of the product knows them.
"""

import os
from typing import Any

from icedb_engine.reading import unit
from icedb_local.chaos.batches import DEADLY_MARKS

_decompress = vars(unit)["decompress"]


def _crash(*args: Any, **more: Any) -> bytes:
    body: bytes = _decompress(*args, **more)
    if DEADLY_MARKS["raises"].encode() in body:
        raise ArithmeticError("this batch crashes its reader")
    if DEADLY_MARKS["exits"].encode() in body:
        os._exit(1)
    return body


vars(unit)["decompress"] = _crash

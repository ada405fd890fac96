"""A strict reader of the wire rules, written from their text and from nothing else.

It shares no code with :mod:`icedb_log.log.codec` and :mod:`icedb_log.log.fold`: what it cannot read, or reads
otherwise, an existing IceDB v3 reader would not read, or would read otherwise.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

_KEY: Final = re.compile(r".+/_log/([0-9]{13})_(m_)?[0-9a-f]+\.jsonl")
_parse: Final = json.JSONDecoder().decode
_NUMBERS: Final = ("v", "t", "sch", "f", "tmb")


@dataclass(frozen=True, slots=True)
class WireFile:
    """What a v3 reader sees in one log file.

    Attributes:
        markers: Data file and whether the marker says that it is live, in the order of the lines.
        log_tombstones: Keys of dead log files and when they died.
        schema: The schema line.
        batch_ids: Our own field ``ids``.
        widened: Our own field ``w``.
        refused_ids: Our own field ``rej``.
        time_ms: ``t`` of line 0.
    """

    markers: tuple[tuple[str, bool], ...]
    log_tombstones: dict[str, int]
    schema: dict[str, str]
    batch_ids: tuple[str, ...]
    widened: dict[str, tuple[str, int]]
    refused_ids: tuple[str, ...]
    time_ms: int


def read_wire(key: str, body: bytes) -> WireFile:
    """Read one log file strictly. Raises ValueError saying which rule of the wire it breaks."""
    name = _KEY.fullmatch(key)
    _require(name is not None, key, "its name is not that of a log file")
    _require(not body.endswith(b"\n"), key, "a trailing newline")
    lines: list[Any] = [_parse(line) for line in body.decode().split("\n")]
    head = lines[0]
    for field in _NUMBERS:
        if field in head:
            _require(type(head[field]) is int, key, f"{field} is not an integer")
    _require(head["v"] == 1 and head["sch"] == 1, key, "v or sch is not 1")
    _require(name is not None and int(name[1]) == head["t"], key, "t is not the time in its name")
    first_tombstone = head.get("tmb", head["f"])
    _require("tmb" not in head or head["f"] > head["tmb"] > 0, key, "tmb without a log tombstone")
    _require(first_tombstone == head["sch"] + 1, key, "lines that belong to nothing")
    _require(all(isinstance(sql_type, str) for sql_type in lines[1].values()), key, "a type that is no string")
    markers: list[tuple[str, bool]] = []
    for line in lines[head["f"] :]:
        _require(type(line["b"]) is int and type(line["t"]) is int, key, "a marker's b or t is not an integer")
        _require("/_data/" in line["p"] and line["p"][0] != "/", key, "a marker's p is not a full key")
        markers.append((line["p"], "tmb" not in line))
    dead = {line["p"]: line["t"] for line in lines[first_tombstone : head["f"]]}
    return WireFile(
        markers=tuple(markers),
        log_tombstones=dead,
        schema=lines[1],
        batch_ids=tuple(head.get("ids", ())),
        widened={column: (wide, since_ms) for column, (wide, since_ms) in head.get("w", {}).items()},
        refused_ids=tuple(head.get("rej", ())),
        time_ms=head["t"],
    )


def read_live(files: Iterable[tuple[str, Iterable[tuple[str, bool]]]]) -> set[str]:
    """Return the live data files as a v3 reader does: key order, and the last marker of a file wins.

    Args:
        files: Key of each log file, and its markers in the order of the lines.
    """
    live: dict[str, bool] = {}
    for _, markers in sorted(files, key=lambda entry: entry[0]):
        live.update(markers)
    return {path for path, is_live in live.items() if is_live}


def _require(is_kept: bool, key: str, broken: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not is_kept:
        raise ValueError(f"{key}: {broken}")

"""How the rules of pins, versions and commits under way are switched off. Their schedules have pinners."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, keeps, played_by

PIN_RULES: Final = played_by(
    "pinners:2",
    breaks(
        "J7",
        "pins are ignored",
        edit(
            "clean.holds:read_holds",
            ("(pins or PinReader()).read(store, paths, data_grace_ms=config.data_grace_ms, latest_ms=now_ms)", "()"),
        ),
    ),
    breaks(
        "J7",
        "pins are read before the log",
        edit(
            "clean.vacuum:vacuum_table",
            (
                "    view = reader.read()\n",
                code(
                    "    from icedb_log.clean.pins import PinReader as _Pins",
                    "    early = _Pins().read(store, paths, data_grace_ms=config.data_grace_ms)",
                    "    view = reader.read()",
                    "",
                ),
            ),
            (
                "    plan = plan_vacuum(view, config=config, holds=holds)\n    if",
                code(
                    "    holds = replace(holds, pins=early)",
                    "    plan = plan_vacuum(view, config=config, holds=holds)",
                    "    if",
                ),
            ),
        ),
    ),
    breaks(
        "J7",
        "a pin is not proven",
        edit("clean.pin_creation:_require_certain", ("if doubt is not None:", "if False:")),
    ),
    breaks(
        "J7",
        "a pin is proven by a log that was read before it was there",
        edit(
            "clean.pin_creation:create_pin",
            ("    _choose(reader.read(), at_ms)", "    view = reader.read()\n    _choose(view, at_ms)"),
            ("        view = reader.read()\n", ""),
        ),
    ),
    breaks(
        "J7",
        "a pending pin holds nothing",
        edit("clean.pin_object:decode_pinned_files", ("return pin, None\n    try", "return pin, frozenset()\n    try")),
    ),
    breaks(
        "J7",
        "files go as soon as their pin has ended",
        edit("clean.pin_object:Pin.held_until_ms", ("return self.ends_ms + data_grace_ms", "return self.ends_ms")),
    ),
    breaks(
        "J7",
        "the name is looked at before the pin is there only",
        edit("clean.pin_creation:create_pin", ("        _require_free(store, paths, name, mine=key)\n", "")),
    ),
    breaks(
        "J8",
        "versions are ignored",
        edit("clean.holds:read_holds", ("find_kept_versions(view, config.keep_versions)", "None")),
    ),
    breaks(
        "J8",
        "with fewer commits than versions nothing is kept",
        edit("clean.guards:find_kept_versions", ("else EVERY_STATE_MS", "else _NEVER_MS")),
    ),
    breaks(
        "J8",
        "one version too few is kept",
        edit(
            "clean.guards:find_kept_versions",
            ("times[count - 1] if len(times) >= count", "times[max(count - 2, 0)] if len(times) >= count"),
        ),
    ),
    keeps(
        "J9",
        "log files go although a fence names them",
        edit(
            "clean.holds:read_holds",
            ("_find_open_commits(fences, config=config, now_ms=now_ms)", "()"),
        ),
    ),
)

"""How the rules of the orphan sweep are switched off. They stand behind each other: most are broken in pairs."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, keeps

_ANY_AGE: Final = (
    edit("clean.table_walk:_is_old", ("return born_ms(info) + age_ms <= now_ms", "return True")),
    edit("clean.orphan_plan:_still_counts", ("born_ms(info) + config.orphan_age_ms <= sighting", "0 <= sighting")),
)
_ONE_SIGHTING: Final = edit(
    "clean.orphan_plan:is_ripe", ("return (\n        sighting is not None", "return True or (\n        sighting")
)
_LOG_BEFORE_LISTING: Final = edit(
    "clean.orphans:sweep_orphans",
    ("named=_named(reader.read())", "named=_named(before := reader.read())"),
    ("    view = reader.read()  # J5", "    view = before  # J5"),
)
_NAMED_WHILE_LIVE: Final = edit(
    "clean.orphans:_named", ("for marker in file.log.markers}", "for marker in file.log.markers if marker.is_live}")
)

ORPHAN_RULES: Final = (
    breaks("J5", "all data files look old, and one sighting is enough", *_ANY_AGE, _ONE_SIGHTING),
    keeps("J5", "one sighting is enough", _ONE_SIGHTING),
    breaks(
        "J5",
        "the log is read before the data files are listed, and one sighting is enough",
        _LOG_BEFORE_LISTING,
        _ONE_SIGHTING,
    ),
    breaks("J5", "the log is read before the data files are listed", _LOG_BEFORE_LISTING),
    breaks(
        "J5",
        "commits under way are not settled, and one sighting is enough",
        _ONE_SIGHTING,
        edit("clean.orphans:sweep_orphans", ("settle_fence(store, paths, role)", "pass")),
    ),
    breaks(
        "J5",
        "commits under way are settled after the log was read, and one sighting is enough",
        _ONE_SIGHTING,
        edit(
            "clean.orphans:sweep_orphans",
            ("            settle_fence(store, paths, role)\n", "            pass\n"),
            (
                "    walk.keep_unnamed(",
                code(
                    "    for role in ROLES:",
                    "        settle_fence(store, paths, role)",
                    "    walk.keep_unnamed(",
                ),
            ),
        ),
    ),
    breaks(
        "J5",
        "a data file counts as named only while it is live, and one sighting is enough",
        _NAMED_WHILE_LIVE,
        _ONE_SIGHTING,
    ),
    keeps(
        "J5",
        "a sighting counts for another ETag",
        edit("clean.orphan_plan:_still_counts", ("sighting.etag == info.etag", "sighting.etag")),
    ),
)

"""How the rules of dropped tables are switched off. Their schedules have droppers."""

from typing import Final

from icedb_sim.rules.mutations import breaks, edit, played_by

_RUN: Final = "clean.purge_run:PurgeRun."
_CACHE: Final = "serving.table_cache:CachedTable._may_be_gone"

TRASH_RULES: Final = played_by(
    "droppers:2",
    breaks("T1", "an undrop leaves no trace", edit("clean.drop:undrop_table", (', "undropped": mark.drop_id}', "}"))),
    breaks(
        "T1",
        "a drop that was taken back comes again",
        edit(
            "clean.drop:drop_table", ("if has_written and found is None and config.undropped == drop_id:", "if False:")
        ),
    ),
    breaks(
        "T1",
        "a table is purged at once",
        edit("clean.purge:_look_at_trash", ("info.modified_ms + mark.keep_ms >", "info.modified_ms >")),
    ),
    breaks(
        "T1",
        "a table stays in the trash for the grace period exactly",
        edit("clean.drop:_next_mark", ("config.data_grace_ms + BELIEVED_MS", "config.data_grace_ms")),
    ),
    breaks(
        "T1",
        "a configuration is believed without a look after the log",
        edit("serving.table_cache:CachedTable._read_now", ("if self._may_be_gone(source, view):", "if False:")),
    ),
    breaks(
        "T1",
        "seals alone count as a log",
        edit(_CACHE, ("if all(file.log.is_seal for file in view.files):", "if False:")),
    ),
    breaks("T4", "the fences are not taken", edit(_RUN + "purge", ("for role in ROLES:", "for role in ():"))),
    breaks(
        "T4",
        "fences do not say which table they belong to",
        edit("log.fence:acquire_fence", ("current.incarnation not in (incarnation, becomes)", "False")),
    ),
    breaks(
        "T4",
        "the janitor goes by the configuration that it read first",
        edit("table.same_table:require_same_table", (".incarnation != config.incarnation", ".incarnation is None")),
    ),
    breaks(
        "T5",
        "the mark is not read after the listing",
        edit(_RUN + "_delete", ("    self._require_purging()\n", "")),
    ),
    breaks(
        "T5",
        "who deletes names that can come again does not say so",
        edit(_RUN + "_delete", ("    if not may_be_late:\n        self._join()\n", "")),
    ),
    breaks(
        "T6",
        "a name is free although purgers may still delete",
        edit("table.drop_mark:require_purged", ("if mark.purgers and age_ms < seal_age_ms:", "if False:")),
    ),
    breaks(
        "T6",
        "a name is free as soon as its table is purged",
        edit("table.drop_mark:require_purged", ("if wait_ms > 0:", "if False:")),
    ),
    breaks(
        "T6",
        "a name is free before its table is purged",
        edit("table.drop_mark:require_purged", ('if mark.state != "purged":', "if False:")),
    ),
    breaks(
        "T6",
        "nobody looks once more for what came late",
        edit(
            "clean.purge:_look_at_purged", ('return {"is_final": True, "purgers": ()}', 'return PurgeResult("purged")')
        ),
    ),
    breaks(
        "F4",
        "a purge deletes seals",
        edit(_RUN + "_list", ("if not self._is_young_seal(info, now_ms=page.store_now_ms):", "if True:")),
    ),
)

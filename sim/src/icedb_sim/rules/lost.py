"""How the rules about lost commits are switched off (F5, J5, B1)."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, played_by

LOST_RULES: Final = played_by(
    "checkers:1",
    breaks(
        "F5",
        "an intent counts as landed",
        edit(
            "log.fence:HeldFence._advance",
            (
                "commit=commit, sequence=held.sequence + 1",
                "commit=commit, sequence=held.sequence + 1, landed=add_landed(held.landed, commit or 'none')",
            ),
        ),
    ),
    breaks(
        "F5",
        "what an owner left counts as landed, sealed or not",
        edit("log.fence:acquire_fence", ("if not is_sealed and _has_landed(store, current.commit):", "if True:")),
    ),
    breaks(
        "F5",
        "a commit that lands is not remembered",
        edit("log.fence:HeldFence.commit", ("landed=add_landed(self._state.landed, key)", "landed=()")),
    ),
    breaks(
        "F5",
        "the next table of a name inherits the history",
        edit("log.fence:acquire_fence", ("landed=landed if becomes is None else ()", "landed=landed")),
    ),
    breaks(
        "F5",
        "what the janitor has deleted counts as lost",
        edit("log.lost_commits:find_lost", ("if _time_ms(name) > horizon_ms", "if _time_ms(name) > 0")),
    ),
    breaks(
        "F5",
        "a sweep reads the fences after the log",
        edit(
            "clean.orphans:sweep_orphans",
            (
                code(
                    "    landed = read_landed(store, paths)  # F5: before the log that decides",
                    "    view = reader.read()  # J5: after the listing",
                ),
                code("    view = reader.read()", "    landed = read_landed(store, paths)"),
            ),
        ),
    ),
    breaks(
        "F5",
        "a vacuum does not read the log again before it calls a commit lost",
        edit("clean.vacuum:vacuum_table", ("again = reader.read()", "again = view")),
    ),
    breaks(
        "F5",
        "a vacuum writes no loss down",
        edit("clean.vacuum:vacuum_table", ("if find_lost(holds.landed, view):", "if False:")),
    ),
    breaks(
        "F5",
        "a loss is forgotten when the horizon has passed it",
        edit("clean.orphan_record:OrphanRecord.with_lost", ("if name in found or not", "if name in found and not")),
    ),
    breaks(
        "F5",
        "a rebuild forgets a loss before it has committed",
        edit("repair.rebuild:_Run._call_off_sweeps", ("lost=record.lost", "lost={}")),
    ),
    breaks(
        "J5",
        "what may be of a lost commit is swept",
        edit("clean.orphan_plan:_may_be_lost", ("return lost_ms > 0 and", "return False and")),
    ),
    breaks(
        "B1",
        "a rebuild does not believe what a fence says of a lost commit",
        edit("repair.rebuild_commits:CommitResolver._is_remembered", ("in self._landed", "in ()")),
    ),
    breaks(
        "B1",
        "a lost merge counts although its inputs were merged again",
        edit(
            "repair.rebuild_commits:CommitResolver._judge_landed", ("if self._has_proven_rival(attempt):", "if False:")
        ),
    ),
    breaks(
        "B1",
        "a lost flush counts although a later one looks the same",
        edit("repair.rebuild_commits:CommitResolver._judge_landed", ("if twin:", "if False:")),
    ),
)

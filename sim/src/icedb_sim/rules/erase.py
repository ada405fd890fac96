"""How the rules of erasures are switched off. Their schedules have erasers."""

from typing import Final

from icedb_sim.rules.mutations import breaks, code, edit, keeps, played_by

ERASE_RULES: Final = played_by(
    "erasers:3",
    breaks(
        "E1",
        "a record that changed since the last look is completed all the same",
        edit("erasure.erasure_run:_completed", ("if now != seen:", "if False:")),
    ),
    breaks(
        "E2",
        "batches that were accepted before the request are not waited for",
        edit("erasure.erasure_run:_ErasureRun.advance", ("if staged_count:", "if False:")),
    ),
    breaks(
        "E3",
        "a deletion that was written down is taken for one that landed",
        edit("erasure.erasure_deletion:_with_fate", ("    if key is not None:", "    if True:")),
    ),
    breaks(
        "E4",
        "dead data files are not searched",
        edit("erasure.erasure_run:_ErasureRun._find_targets", ("(*objects.dead(), *unnamed)", "(*unnamed,)")),
    ),
    breaks(
        "E4",
        "dead data files are searched before the deletion",
        edit(
            "erasure.erasure_run:_ErasureRun.advance",
            (
                "erasure = self._delete(erasure)",
                code(
                    "self._early = read_objects(self._store, self._paths, reader=self._reader)",
                    "        erasure = self._delete(erasure)",
                ),
            ),
        ),
        edit(
            "erasure.erasure_run:_ErasureRun._find_targets",
            ("objects = read_objects(self._store, self._paths, reader=self._reader)", "objects = self._early"),
        ),
    ),
    keeps(
        "E4",
        "unnamed data objects are not searched after the deletion",
        edit("erasure.erasure_run:_ErasureRun._find_targets", ("(*objects.dead(), *unnamed)", "(*objects.dead(),)")),
    ),
    breaks(
        "E5",
        "log files may name what is gone",
        edit(
            "erasure.erasure_run:_ErasureRun._look",
            ("proved = known - present.keys() - named", "proved = known - present.keys()"),
        ),
    ),
    breaks(
        "E5",
        "what others added to the record after the listing is taken for gone",
        edit(
            "erasure.erasure_run:_ErasureRun._look",
            ("mark_gone(now, known - present.keys()", "mark_gone(now, {t.key for t in now.targets} - present.keys()"),
            ("proved = known - present", "proved = {target.key for target in erasure.targets} - present"),
        ),
    ),
    breaks(
        "E6",
        "unnamed data objects are not searched in the end",
        edit(
            "erasure.erasure_run:_ErasureRun._look_at_all",
            ("suspects = self._count(erasure, objects.unnamed(), objects)", "suspects = ()"),
        ),
    ),
    breaks(
        "E6",
        "what the last look finds is never looked for again",
        edit(
            "erasure.erasure_run:_ErasureRun._look_at_all",
            ("if erasure.suspects and not known & set(erasure.suspects):", "if erasure.suspects:"),
        ),
    ),
)

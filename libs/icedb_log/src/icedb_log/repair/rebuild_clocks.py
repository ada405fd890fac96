"""Where a rebuild goes by clocks that may have been wrong. Pure; decides nothing.

Which of two jobs that read the same file came last is told by the times in their commit ids (B1), which their hosts'
clocks made. The store has a time of its own for what each of them wrote.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from icedb_log.clock import uuid7_hex_ms
from icedb_log.repair.rebuild_commits import Attempt
from icedb_log.store.store_clock import MAX_STORE_GAP_MS


def find_odd_times(attempts: Mapping[str, Attempt]) -> list[str]:
    """Return the data files of jobs whose order by commit ids the store's times do not bear out.

    Those of a host that was ahead: the id is later than what was written for it. And of jobs that read the same file,
    where the one that counts as later wrote everything before the other one wrote anything: one of both clocks was off,
    or the other one slept.

    Args:
        attempts: What was written for each commit.
    """
    odd = {commit_id for commit_id, attempt in attempts.items() if _is_ahead(attempt)}
    takers: dict[str, list[Attempt]] = defaultdict(list)
    for commit_id in sorted(attempts):
        for key in attempts[commit_id].inputs:
            takers[key].append(attempts[commit_id])
    for known in takers.values():
        for earlier, later in pairwise(known):
            if _written_ms(earlier)[0] > _written_ms(later)[1] + MAX_STORE_GAP_MS:
                odd |= {earlier.commit_id, later.commit_id}
    return sorted(footer.info.key for commit_id in odd for footer in attempts[commit_id].outputs)


def _is_ahead(attempt: Attempt) -> bool:
    made_ms = uuid7_hex_ms(attempt.commit_id)
    return made_ms is not None and made_ms > _written_ms(attempt)[0] + MAX_STORE_GAP_MS


def _written_ms(attempt: Attempt) -> tuple[int, int]:
    times = [footer.info.modified_ms for footer in attempt.outputs]
    return min(times), max(times)

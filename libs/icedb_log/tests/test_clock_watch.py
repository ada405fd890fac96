"""How this host's clock stands to the store's: skew, jumps, smears, and answers that took long."""

from pathlib import Path

import pytest
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.store.s3_options import S3Options
from icedb_log.store.store_clock import JUMP_MS, PAUSE_MS, WINDOW_MS, ClockWatch, TellsTime
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore

SECOND_MS = 1000
DAY_MS = 86_400_000


class Scene:
    """A host, its store, and what was told of both."""

    def __init__(self):
        self.clock = FakeClock()
        self.store_off_ms = 0
        self.skews, self.jumps = [], []
        self.watch = ClockWatch(self.clock, on_skew=self.skews.append, on_jump=self.jumps.append)

    def hear(self, passed_ms=SECOND_MS, *, took_ms=0):
        self.clock.advance(passed_ms)
        store_ms = self.clock.now_ms() + self.store_off_ms
        self.clock.advance(took_ms)
        self.watch.hear(store_ms)
        return self.skews[-1]


@pytest.fixture
def scene():
    return Scene()


@pytest.mark.parametrize("off_ms", [0, 90_000, -90_000])
def test_skew_is_how_far_this_host_is_ahead(scene, off_ms):
    scene.store_off_ms = -off_ms
    assert scene.hear() == off_ms
    assert scene.jumps == []


def test_an_answer_that_took_long_is_no_skew(scene):
    scene.hear()
    assert scene.hear(took_ms=20 * SECOND_MS) == 0
    for _ in range(5):
        scene.hear(WINDOW_MS // 2)
    assert scene.hear(took_ms=20 * SECOND_MS) == 0


def test_a_store_that_drifts_away_shows_after_a_window_at_most_two(scene):
    scene.hear()
    scene.store_off_ms = -60 * SECOND_MS
    shown = [scene.hear(WINDOW_MS // 2) for _ in range(5)]
    assert shown[-1] == 60 * SECOND_MS
    scene.store_off_ms = 60 * SECOND_MS
    assert scene.hear() == -60 * SECOND_MS  # the other way at once


@pytest.mark.parametrize("step_ms", [JUMP_MS, -JUMP_MS, DAY_MS, -DAY_MS])
def test_a_clock_that_is_set_is_told_once_and_the_skew_at_once(scene, step_ms):
    scene.hear()
    scene.clock.set_wall(scene.clock.now_ms() + step_ms)
    scene.store_off_ms = -step_ms
    assert scene.hear() == step_ms
    scene.hear()
    assert scene.jumps == [step_ms]


def test_a_leap_second_jumps_and_a_smeared_one_does_not(scene):
    scene.hear()
    scene.clock.set_wall(scene.clock.now_ms() - SECOND_MS)
    scene.hear()
    assert scene.jumps == [-SECOND_MS]
    for _ in range(24 * 60):  # a second, over a day
        scene.clock.set_wall(scene.clock.now_ms() + 1)
        scene.hear(60 * SECOND_MS)
    assert scene.jumps == [-SECOND_MS]


def test_a_pause_between_both_clocks_is_no_jump(scene):
    scene.hear()
    now_ms = scene.clock.now_ms

    def slow():
        found = now_ms()
        scene.clock.advance(PAUSE_MS + JUMP_MS)
        return found

    scene.clock.now_ms = slow
    scene.watch.hear(now_ms())
    scene.clock.now_ms = now_ms
    scene.hear()
    assert scene.jumps == []


def test_a_directory_and_a_bucket_tell_the_time_and_a_store_in_memory_does_not(tmp_path):
    heard = []
    store = LocalObjectStore(Path(tmp_path))
    assert isinstance(store, TellsTime)
    store.time_listeners.append(heard.append)
    page = store.list_page("")
    assert heard == [page.store_now_ms]
    assert isinstance(S3ObjectStore("bucket", S3Options()), TellsTime)
    assert not isinstance(MemoryObjectStore(lambda: 0), TellsTime)

"""What a chaos run is made of: faults from a seed, what metrics must show of them, and the sums of the report."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from icedb_local.chaos.batches import BatchEntry, BatchLedger, encode_batch
from icedb_local.chaos.chaos_layout import ChaosLayout, Pace
from icedb_local.chaos.chaos_producers import ChaosProducer
from icedb_local.chaos.conductor import Conductor
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.fault_plan import KIND_BY_NAME, KINDS, PlannedFault, PlanShape, draw_faults
from icedb_local.chaos.fault_proxy import ActiveFaults, FaultHits, ProxyFault, Request
from icedb_local.chaos.fault_records import InjectedFault, sum_kinds
from icedb_local.chaos.injector import GROUP_HELD_MS, Effect, Injector
from icedb_local.chaos.metric_history import (
    START_TIME,
    MetricHistory,
    Scrape,
    Trace,
    lack_of_work,
    parse_metrics,
    sum_figures,
)
from icedb_local.chaos.outages import Outages, find_recovery_ms
from icedb_local.chaos.staged_groups import StagedGroups
from icedb_local.chaos.verdicts import count_failures, find_cuts, judge_fault
from icedb_log.errors import Unavailable
from icedb_sim.fakes.fake_clock import FakeClock
from waiting import LIMIT_S

COUNTER = "icedb_store_request_failures_total"
RISES = Trace("rises", COUNTER, ('reason="timeout"',))


def draw(seed, count, **shape):
    return list(itertools.islice(draw_faults(seed, PlanShape(**shape)), count))


def test_a_seed_is_a_plan():
    assert draw(7, 200) == draw(7, 200) != draw(8, 200)


def test_each_kind_comes_once_before_any_comes_twice():
    faults = draw(3, len(KINDS) + 40)
    assert {fault.kind.name for fault in faults[: len(KINDS)]} == {kind.name for kind in KINDS}


def test_what_is_left_out_is_no_target_and_nothing_lasts_longer_than_it_may():
    faults = draw(3, 600, left_out=("enqueue", "gateway"), longest_ms=900)
    assert not {"enqueue", "gateway"} & {fault.target for fault in faults}
    assert max(fault.duration_ms for fault in faults) == 900


def test_every_kind_is_seen_or_says_why_not():
    for kind in KINDS:
        for target in kind.targets:
            assert kind.traces_of(target) or kind.why_untraced, kind.name


def scrape(time_ms, *, start=1.0, answered_ms=None, **counts):
    values = {START_TIME: start} | {f'{COUNTER}{{operation="read",reason="{k}"}}': float(v) for k, v in counts.items()}
    return Scrape(time_ms, values, answered_ms)


def history(*scrapes):
    made = MetricHistory()
    for one in scrapes:
        made.add("ingest", one)
    return made


@pytest.mark.parametrize(
    ("trace", "scrapes", "is_shown"),
    [
        (RISES, [scrape(5, timeout=1), scrape(15, timeout=2)], True),
        (RISES, [scrape(5, timeout=2), scrape(15, timeout=2)], False),
        (RISES, [scrape(5, timeout=1), scrape(15, timeout=1, broken=9)], False),
        (RISES, [scrape(5, timeout=1), scrape(15, timeout=1), scrape(30, timeout=2)], True),
        (RISES, [scrape(5, timeout=1), scrape(25, timeout=1), scrape(30, timeout=2)], False),
        (RISES, [scrape(1, timeout=1), scrape(5, timeout=2), scrape(25, timeout=2)], False),
        (RISES, [scrape(1, timeout=1), scrape(8, answered_ms=14, timeout=2), scrape(25, timeout=2)], True),
        (RISES, [scrape(1, timeout=1), scrape(8, answered_ms=9, timeout=2), scrape(25, timeout=2)], False),
        (RISES, [scrape(5, timeout=9), scrape(15, start=2.0, timeout=1)], True),
        (RISES, [scrape(5, timeout=9), Scrape(12, None), scrape(15, timeout=9)], False),
        (Trace("silent", service="ingest"), [scrape(5), Scrape(15, None)], True),
        (Trace("silent", service="ingest"), [Scrape(5, None), scrape(15)], False),
        (Trace("silent", service="merger"), [scrape(5), Scrape(15, None)], False),
        (Trace("restarted", service="ingest"), [scrape(5), Scrape(12, None), scrape(15, start=2.0)], True),
        (Trace("restarted", service="ingest"), [scrape(5), scrape(15)], False),
    ],
)
def test_a_trace_is_looked_for_between_two_times(trace, scrapes, is_shown):
    assert history(*scrapes).shows(trace, begin_ms=10, end_ms=20) is is_shown


def test_slow_observations_are_those_above_a_bucket():
    trace = Trace("slow", "icedb_x_seconds", above="0.25")

    def seen(fast, every):
        return {START_TIME: 1.0, 'icedb_x_seconds_bucket{le="0.25"}': fast, "icedb_x_seconds_count": every}

    shown = history(Scrape(5, seen(3.0, 4.0)), Scrape(15, seen(3.0, 5.0)))
    hidden = history(Scrape(5, seen(3.0, 4.0)), Scrape(15, seen(5.0, 6.0)))
    assert shown.shows(trace, begin_ms=10, end_ms=20)
    assert not hidden.shows(trace, begin_ms=10, end_ms=20)


def silent(time_ms):
    return Scrape(time_ms, None)


@pytest.mark.parametrize(
    ("scrapes", "is_lost"),
    [
        ([scrape(5), scrape(15), scrape(25)], False),
        ([scrape(5), silent(15), scrape(25)], False),
        ([scrape(5), silent(15), silent(25), scrape(35, start=2.0)], True),
        ([scrape(5), scrape(15, start=2.0)], True),
        ([scrape(1), silent(5), silent(15), scrape(25, start=2.0)], True),
        ([scrape(8), scrape(12), silent(15), scrape(25, start=2.0)], True),
        ([scrape(8), scrape(14), silent(15), scrape(25, start=2.0)], False),
        ([scrape(1), silent(5), scrape(8, start=2.0), scrape(25, start=2.0)], False),
        ([scrape(25), silent(35), scrape(45, start=2.0)], True),
        ([scrape(5), silent(15)], True),
        ([scrape(5), scrape(15)], False),
    ],
)
def test_counts_are_lost_with_the_process_that_had_them(scrapes, is_lost):
    assert history(*scrapes).is_lost("ingest", 10, slack_ms=3) is is_lost


def test_who_stood_still_tells_later_what_it_has_counted():
    trace = Trace("rises", "icedb_store_request_failures_total")
    shown = history(scrape(5, broken=1), silent(15), silent(25), scrape(35, broken=2))
    assert shown.shows(trace, begin_ms=10, end_ms=20)


def met(kind, *, hits=None, count=0, must_show=True):
    """A fault from 10 to 20 that met somebody; ``hits``: times by service."""
    found = None if hits is None else FaultHits(KIND_BY_NAME[kind].proxy, hits)
    planned = PlannedFault(1, KIND_BY_NAME[kind], "", 0, 0)
    return InjectedFault(planned, 10, end_ms=20, count=count, hits=found, must_show=must_show)


INGEST = {"ingest": [12]}


@pytest.mark.parametrize(
    ("hits", "scrapes", "seen"),
    [
        (INGEST, [scrape(5, broken=1), scrape(15, broken=2)], "seen"),
        (INGEST, [scrape(5, broken=1), scrape(15, broken=1)], "unseen"),
        (INGEST, [scrape(5, broken=1), scrape(15, broken=1, throttled=9)], "unseen"),
        (INGEST, [scrape(5, broken=1), silent(15), scrape(25, broken=1)], "unseen"),
        (INGEST, [scrape(5, broken=1), silent(15), scrape(25, start=2.0)], "masked"),
        (INGEST, [scrape(5, broken=1), silent(15), scrape(25, start=2.0, broken=1)], "seen"),
        ({"ingest": [12, 19]}, [scrape(5, broken=1), scrape(15, broken=1), scrape(25, start=2.0)], "unseen"),
        ({"ingest": [12], "merger": [12]}, [scrape(5, broken=1), scrape(15, broken=2)], "unseen"),
        ({"watchers": [12]}, [scrape(5, broken=1), scrape(15, broken=1)], "nothing_to_see"),
    ],
)
def test_each_service_that_a_fault_of_the_proxy_has_met_must_tell(hits, scrapes, seen):
    made = history(*scrapes)
    for time_ms in (5, 15, 25):
        made.add("merger", scrape(time_ms, broken=1))
    fault = met("s3_drop", hits=hits)
    judge_fault(fault, made, settle_ms=0)
    assert fault.seen == seen
    assert fault.has_effect
    if seen == "unseen":
        assert ("merger" if "merger" in hits else "ingest") in fault.trace


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (met("broker_down", count=1), "unseen"),
        (met("broker_down", count=1, must_show=False), "nothing_to_see"),
        (met("lock_empty", count=1), "nothing_to_see"),
        (met("s3_slow", hits={"ingest": [12]}), "unseen"),
        (met("s3_slow", hits={"watchers": [12]}), "nothing_to_see"),
    ],
)
def test_the_death_of_a_service_excuses_nothing_that_lasts_until_it_shows(fault, seen):
    judge_fault(fault, history(scrape(5, broken=1), silent(15), scrape(25, start=2.0)), settle_ms=0)
    assert fault.seen == seen


def test_every_request_that_was_made_to_fail_is_counted():
    faults = [met("s3_drop", hits={"ingest": [12, 13], "watchers": [14]}), met("s3_500", hits={"ingest": [15]})]
    faults.append(met("s3_slow", hits={"ingest": [16]}))
    scrapes = [scrape(5, broken=1), scrape(20, broken=3), scrape(30, broken=3)]
    (counted,) = count_failures(faults, history(*scrapes), settle_ms=0)
    assert (counted.service, counted.made, counted.counted, counted.is_whole) == ("ingest", 3, 3, True)
    faults.append(met("s3_503", hits={"ingest": [17]}))
    (counted,) = count_failures(faults, history(*scrapes), settle_ms=0)
    assert not counted.is_whole
    dead = history(*scrapes[:1], scrape(14, broken=3), scrape(30, start=2.0))
    (counted,) = count_failures(faults, dead, settle_ms=0)
    assert (counted.made, counted.is_whole) == (2, True), "the others met a process that died uncounted"


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "seen"), [(15, 30, "seen"), (1, 12, "seen"), (21, 30, "unseen"), (1, 9, "unseen")]
)
def test_an_answer_that_a_cut_took_on_its_way_shows_as_a_broken_connection(begin_ms, end_ms, seen):
    cut = InjectedFault(PlannedFault(2, KIND_BY_NAME["s3_cut"], "", 0, 0), begin_ms, end_ms=end_ms, count=1)
    fault = met("s3_503", hits=INGEST)
    cuts = find_cuts([fault, cut])
    assert cuts == (cut,)
    judge_fault(fault, history(scrape(5, broken=1), scrape(20, broken=2)), settle_ms=0, cuts=cuts)
    assert fault.seen == seen


@pytest.mark.parametrize(("has_spark", "seen"), [(True, "seen"), (False, "unseen")])
def test_with_spark_the_outcome_of_a_run_tells_of_its_tasks(has_spark, seen):
    def answer(time_ms, count):
        return Scrape(time_ms, {START_TIME: 1.0, 'icedb_ingest_runs_total{outcome="lock_lost",task="flush"}': count})

    made = MetricHistory()
    for one in (answer(5, 1.0), answer(15, 2.0)):
        made.add("ingest", one)
    fault = met("s3_drop", hits=INGEST)
    judge_fault(fault, made, settle_ms=0, has_spark=has_spark)
    assert fault.seen == seen
    assert [one.service for one in count_failures([fault], made, settle_ms=0, has_spark=has_spark)] == (
        [] if has_spark else ["ingest"]
    )


RUNS = 'icedb_merge_runs_total{{outcome="{}",task="merge"}}'


def tell(time_ms, *, start=1.0, broken=0, **runs):
    values = {START_TIME: start, f'{COUNTER}{{operation="read",reason="broken"}}': float(broken)}
    return Scrape(time_ms, values | {RUNS.format(outcome): float(count) for outcome, count in runs.items()})


@pytest.mark.parametrize(
    ("scrapes", "seen"),
    [
        ([tell(5), tell(25), tell(60), tell(90, broken=2, done=1)], "seen"),
        ([tell(5), tell(25), tell(60, done=1), tell(70, done=1), tell(90, broken=2, done=1)], "unseen"),
        ([tell(5), tell(25), tell(60, idle=1), tell(90, idle=1)], "unseen"),
        ([tell(5), tell(25), tell(60), tell(90, lock_lost=1)], "seen"),
        ([tell(5), tell(25), tell(60), silent(70), tell(90, start=2.0, done=1)], "masked"),
        ([tell(5), tell(25), tell(60), silent(70)], "masked"),
        ([tell(5), tell(25), tell(60, done=1), silent(70), tell(90, start=2.0, done=1)], "unseen"),
    ],
)
def test_what_failed_in_a_task_of_spark_shows_when_the_run_that_was_under_way_has_ended(scrapes, seen):
    made = MetricHistory()
    for one in scrapes:
        made.add("merger", one)
    fault = met("s3_truncate", hits={"merger": [12, 14]})
    fault.hits.requests["merger"] = ["GET /b/t/_data/1.parquet"]
    judge_fault(fault, made, settle_ms=3, has_spark=True)
    assert fault.seen == seen
    assert ("/b/t/_data/1.parquet" in fault.trace) is (seen == "unseen")


@pytest.mark.parametrize(
    ("scrapes", "seen"),
    [
        ([tell(5), tell(15, unavailable=1)], "seen"),
        ([tell(5), tell(15, done=1)], "unseen"),
        ([tell(5), tell(15, idle=4)], "nothing_to_see"),
        ([tell(5), silent(15), tell(40, start=2.0)], "nothing_to_see"),
        ([tell(5), Scrape(15, {START_TIME: 1.0, "icedb_merge_engine_failures_total": 1.0})], "seen"),
    ],
)
def test_a_full_disk_must_show_where_its_worker_was_at_work(scrapes, seen):
    made = MetricHistory()
    for one in scrapes:
        made.add("merger", one)
    fault = InjectedFault(PlannedFault(1, KIND_BY_NAME["disk_full"], "merger", 0, 0), 10, end_ms=20, count=1)
    judge_fault(fault, made, settle_ms=0)
    assert fault.seen == seen


@pytest.mark.parametrize(
    ("later", "seen"),
    [
        ({'icedb_merge_engine_failures_total{reason="died"}': 1.0}, "seen"),
        ({'icedb_ingest_engine_failures_total{reason="died"}': 1.0}, "unseen"),
        ({}, "unseen"),
    ],
)
def test_the_jvm_of_an_idle_worker_that_died_must_show(later, seen):
    made = MetricHistory()
    for time_ms, values in ((5, {}), (25, later)):
        made.add("merger", Scrape(time_ms, {START_TIME: 1.0, **values}))
    fault = InjectedFault(PlannedFault(1, KIND_BY_NAME["kill_child"], "merger", 0, 0), 10, end_ms=20, count=1)
    judge_fault(fault, made, settle_ms=0)
    assert fault.seen == seen


def test_a_long_run_has_to_have_done_enough():
    enough = {
        "commits of merges": 20, "deleted data files": 60, "deleted log files": 40,
        "staged groups": 20, "flushed groups": 20, "front ends killed with a group": 1,
    }  # fmt: skip
    assert lack_of_work(enough) == ""
    assert lack_of_work({**enough, "commits of merges": 19}) == "19 of 20 commits of merges"
    assert lack_of_work({**enough, "deleted log files": 39}) == "99 of 100 deleted data files and deleted log files"
    assert lack_of_work({**enough, "flushed groups": 3, "front ends killed with a group": 0}) == (
        "3 of 20 flushed groups, 0 of 1 front ends killed with a group"
    )


def test_groups_are_staged_objects_of_two_batches_or_more():
    def staged(alone, every):
        sizes = "icedb_frontend_staged_object_batches"
        text = (
            f'{START_TIME} 1\n{sizes}_bucket{{le="1.0"}} {alone}\n{sizes}_bucket{{le="2.0"}} 9\n{sizes}_count {every}\n'
        )
        return parse_metrics(text)

    made = MetricHistory()
    for time_ms, values in ((5, staged(0, 0)), (15, staged(4, 7)), (25, staged(5, 11))):
        made.add("frontend", Scrape(time_ms, values))
    assert sum_figures(made)["staged groups"] == 6


@pytest.mark.parametrize(("seconds", "must_show"), [(1, False), (70, True)])
def test_a_fault_that_is_cut_off_before_anybody_met_it_need_not_show(seconds, must_show):
    clock = FakeClock()
    injector = SimpleNamespace(inject=lambda _: contextlib.nullcontext(Effect(1)))
    scraper = SimpleNamespace(history=history(scrape(0)))
    conductor = Conductor(injector, scraper, up=lambda _: True, say=lambda _: None, clock=clock, settle_ms=0)
    end_ms = clock.monotonic_ms() + 1_000 * seconds
    plan = itertools.repeat(PlannedFault(1, KIND_BY_NAME["broker_down"], "redis", 500, 0))
    conductor.run(plan, lambda: clock.monotonic_ms() >= end_ms)
    assert conductor.faults[0].must_show is must_show


def test_a_fault_whose_server_is_kept_by_one_that_nobody_meets_is_left_out():
    clock = FakeClock()
    injector = SimpleNamespace(inject=lambda _: contextlib.nullcontext(Effect(1)))
    scraper = SimpleNamespace(history=history(scrape(0)))
    conductor = Conductor(injector, scraper, up=lambda _: True, say=lambda _: None, clock=clock, settle_ms=0)
    kinds = ("broker_down", "broker_stop", "broker_empty")
    plan = [PlannedFault(number, KIND_BY_NAME[kind], "redis", 500, 0) for number, kind in enumerate(kinds)]
    began_ms = clock.monotonic_ms()
    conductor.run(iter(plan), lambda: clock.monotonic_ms() > began_ms + 70_000)
    assert [fault.planned.kind.name for fault in conductor.faults] == ["broker_down"]
    assert clock.monotonic_ms() < began_ms + 20_000, "nobody waits a minute for it"


def test_totals_go_on_over_restarts():
    made = history(scrape(1, timeout=2), scrape(2, timeout=5), Scrape(3, None), scrape(4, start=2.0, timeout=1))
    assert made.total("ingest", COUNTER, 'reason="timeout"') == 6


def test_only_the_series_that_count_are_kept():
    text = f'# HELP x y\n{COUNTER}{{operation="read",reason="timeout"}} 3.0\npython_info 1.0\n{START_TIME} 1.7e9\n'
    assert parse_metrics(text) == {f'{COUNTER}{{operation="read",reason="timeout"}}': 3.0, START_TIME: 1.7e9}


GROUP = "/icedb/wh/events/_icedb/staging/0198.ab12.group"


def test_a_group_is_flushed_when_an_ingest_worker_deletes_it():
    groups = StagedGroups()

    def note(door, line, body=b""):
        groups.note(Request(door, "", *line.split(" "), (), body), 0)

    note("ingest", f"PUT {GROUP}")
    note("janitor", f"DELETE {GROUP}")
    note("ingest", f"DELETE {GROUP.replace('group', 'ndjson')}")
    assert groups.flushed_count == 0
    body = f"<Delete><Object><Key>{GROUP[7:]}</Key></Object><Object><Key>{GROUP[7:-6]}2.group</Key></Object></Delete>"
    note("ingest", "POST /icedb?delete", body.encode())
    note("ingest", "POST /icedb?delete", body.encode())
    assert groups.flushed_count == 2


@pytest.mark.parametrize(("number", "action"), [(1, "slow"), (2, "hold")])
@pytest.mark.parametrize(("has_group", "is_slow"), [(True, False), (True, True), (False, False)])
def test_a_front_end_is_killed_while_a_group_is_on_its_way(number, action, has_group, is_slow):
    clock, killed = FakeClock(), []
    active = ActiveFaults(clock)

    def begin(fault):
        hits = active.add(fault)
        active.take("PUT", "/icedb/wh/events/_icedb/staging/0198.ndjson", door="frontend")
        if has_group:
            active.take("PUT", GROUP, door="frontend")
        assert (fault.action, killed) == (action, [])
        return hits

    def kill():
        killed.append(1)
        clock.advance(GROUP_HELD_MS if is_slow else 0)

    process = SimpleNamespace(kill=kill)
    stack, proxy = SimpleNamespace(find_process=lambda _: process), SimpleNamespace(begin=begin, end=active.remove)
    injector = Injector(None, stack, proxy, None, None, clock=clock)
    planned = PlannedFault(number, KIND_BY_NAME["kill_with_group"], "frontend", 0, 0)
    refused = contextlib.nullcontext() if has_group else pytest.raises(Unavailable, match="no group")
    with refused, injector.inject(planned) as effect:
        assert effect.count == (not is_slow), "else the group was answered by then"
    assert killed == [1] * has_group
    assert active.take("PUT", GROUP, door="frontend") is None, "the next one goes through"


def test_batches_that_are_sent_at_once_are_of_one_table():
    clock, ledger, sent = FakeClock(), BatchLedger(), []
    together, enough = threading.Barrier(3), threading.Event()

    def send(entry, _):
        together.wait(LIMIT_S)
        sent.append(entry.table)
        if len(sent) == 6:
            enough.set()

    producer = ChaosProducer(
        "http", send, ledger=ledger, checker=ContentChecker(ledger, seed=1), tables=("a", "b"),
        retry_ms=1, pause_s=0, seed=1, clock=clock, at_once=3,
    )  # fmt: skip
    with producer:
        assert enough.wait(LIMIT_S)
    entries = list(ledger.entries().values())
    assert [entry.table for entry in entries[:6]] == ["a"] * 3 + ["b"] * 3
    assert {entry.state for entry in entries} == {"acknowledged"}


def test_a_proxy_fault_that_met_nobody_has_no_hits():
    active = ActiveFaults(FakeClock())
    first = active.add(ProxyFault("drop", frozenset({"PUT"}), target="/_log/", limit=1))
    second = active.add(ProxyFault("reset"))
    assert active.take("GET", "/b/t/_log/1", door="services") is second
    assert active.take("PUT", "/b/t/_log/1", door="services") is first
    assert active.take("PUT", "/b/t/_log/2", door="watchers") is second
    active.remove(second)
    assert active.take("PUT", "/b/t/_log/2", door="services") is None
    assert (first.total, second.by_door) == (1, {"services": 1, "watchers": 1})
    active.give_back(second, door="watchers")
    assert second.by_door == {"services": 1, "watchers": 0}, "also after its end"


def test_recovery_is_until_a_batch_sent_after_the_fault_is_seen():
    entries = [
        BatchEntry(number, "events", "http", str(number), sent_ms) for number, sent_ms in ((0, 90), (1, 105), (2, 120))
    ]
    assert find_recovery_ms(100, entries, {0: 101, 1: 150, 2: 140}) == 40
    assert find_recovery_ms(100, entries, {0: 101}) is None


def test_the_longest_outage_is_between_two_successes():
    outages = Outages("reader", now_ms=0)
    for now_ms in (10, 50, 60):
        outages.record_success(now_ms=now_ms)
    outages.record_failure("Unavailable")
    assert (outages.longest_ms, outages.success_count, dict(outages.failures)) == (40, 3, {"Unavailable": 1})


def test_faults_that_met_nobody_do_not_count():
    planned = PlannedFault(1, KINDS[0], "ingest", 0, 0)
    faults = [
        InjectedFault(planned, 0, end_ms=1, count=2, seen="seen", recovery_ms=300),
        InjectedFault(planned, 5, end_ms=6, count=1, seen="unseen", recovery_ms=100),
        InjectedFault(planned, 7, end_ms=8, count=0),
    ]
    (figures,) = sum_kinds(faults)
    assert (figures.fault_count, figures.met_count, figures.idle_count) == (2, 3, 1)
    assert (figures.seen_count, figures.unseen_count) == (1, 1)
    assert (figures.recovery_median_ms, figures.recovery_longest_ms) == (300, 300)


@pytest.mark.parametrize(
    ("later", "seen"),
    [
        ({'icedb_ingest_batches_total{outcome="rejected"}': 1.0}, "seen"),
        ({'icedb_ingest_batches_total{outcome="committed"}': 1.0}, "unseen"),
        ({START_TIME: 2.0}, "seen"),
        ({}, "unseen"),
    ],
)
@pytest.mark.parametrize("kind", ["deadly_raises", "deadly_exits"])
def test_a_batch_that_crashed_its_reader_must_show(kind, later, seen):
    made = MetricHistory()
    for time_ms, values in ((5, {}), (60_000, later)):
        made.add("ingest", Scrape(time_ms, {START_TIME: 1.0, **values}))
    fault = InjectedFault(PlannedFault(1, KIND_BY_NAME[kind], "ingest", 0, 0), 10, end_ms=20, count=1)
    judge_fault(fault, made, settle_ms=0)
    assert fault.seen == seen


def test_its_reader_may_meet_any_other_fault_meanwhile():
    planned = PlannedFault(1, KIND_BY_NAME["deadly_exits"], "ingest", 0, 0)
    assert not planned.resources & PlannedFault(2, KIND_BY_NAME["kill"], "ingest", 0, 0).resources


def test_a_deadly_batch_is_asked_for_and_counts_once_it_is_acknowledged():
    ledger = BatchLedger()
    injector = Injector(None, None, None, None, ledger, clock=FakeClock())

    def send():
        return ledger.record_sent(table="events", door="http", batch_id="id", now_ms=0)

    for is_acknowledged in (True, False):
        send()
        with injector.inject(PlannedFault(1, KIND_BY_NAME["deadly_exits"], "ingest", 0, 0)) as effect:
            deadly, other = send(), send()
            ledger.record_settled(deadly.number, "acknowledged" if is_acknowledged else "unknown")
            ledger.record_settled(other.number, "acknowledged")
        assert (deadly.crash, other.crash) == ("exits", None)
        assert effect.count == is_acknowledged


def test_only_a_reader_that_is_patched_crashes(tmp_path):
    layout = ChaosLayout.make(tmp_path, pace=Pace(), engine="spark")
    paths = {one.name: one.env["PYTHONPATH"] for one in layout.programs() if "PYTHONPATH" in one.env}
    assert list(paths) == ["ingest"]
    script = "import sys\nfrom icedb_engine.limits import FlushUnitLimits\nfrom icedb_engine.reading import unit\n"
    script += "unit.read_batch(sys.stdin.buffer.read(), 'ndjson', FlushUnitLimits())\nprint('read')"

    def run(crash, **env):
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env
        return subprocess.run(
            [sys.executable, "-c", script], input=encode_batch(3, 1, crash=crash), env=env, capture_output=True, check=False
        )  # fmt: skip

    assert run("exits").stdout == b"read\n"
    patched = {crash: run(crash, PYTHONPATH=paths["ingest"]) for crash in (None, "raises", "exits")}
    assert patched[None].stdout == b"read\n"
    assert b"ArithmeticError: this batch crashes its reader" in patched["raises"].stderr
    assert (patched["exits"].returncode, patched["exits"].stdout, patched["exits"].stderr) == (1, b"", b"")


def test_the_page_says_of_every_kind_what_must_show_it():
    page = (Path(__file__).parents[3] / "docs" / "internals" / "chaos.md").read_text()
    for kind in KINDS:
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind.name}` |"))
        assert kind.why_untraced in line
        for metric in {trace.metric for trace in kind.traces if trace.metric}:
            assert metric in line, f"{kind.name}: {metric}"

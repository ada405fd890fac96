"""What counts as an answer: yes, in time."""

import threading

from icedb_engine.spark.spark_watch import answers_within


def test_an_answer_counts_if_it_is_yes_and_in_time():
    released = threading.Event()
    assert answers_within(lambda: True, 60)
    assert not answers_within(lambda: False, 60)
    assert not answers_within(lambda: released.wait(60), 0.001)
    released.set()

"""Times to look again."""

from edl_allreduce import clock


def test_the_first_look_is_at_once_and_the_last_one_when_time_is_over(monkeypatch):
    seconds = 100.0
    slept = []

    def sleep(pause):
        nonlocal seconds
        slept.append(pause)
        seconds += pause

    monkeypatch.setattr(clock, "now", lambda: seconds)
    monkeypatch.setattr(clock, "sleep", sleep)
    looks = [seconds - 100.0 for _ in clock.polls(2.0, within=5.0)]
    assert looks == [0.0, 2.0, 4.0, 5.0]
    assert slept == [2.0, 2.0, 1.0]


def test_without_a_limit_they_do_not_end(monkeypatch):
    monkeypatch.setattr(clock, "sleep", lambda pause: None)
    looks = clock.polls(3600.0)
    for _ in range(1000):
        next(looks)

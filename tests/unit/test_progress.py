"""The progress of a job, as it is reported every few seconds."""

from __future__ import annotations

from jobs.spark.spark import LEAST_PAUSE_SECONDS, Progress


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_progress_is_said_once_in_a_pause_and_counts_what_is_under_way() -> None:
    clock, said = Clock(), list[tuple[int, int]]()
    progress = Progress(lambda done, total: said.append((done, total)), clock)
    progress.begin(10)
    progress.end()
    assert said == []
    clock.seconds += LEAST_PAUSE_SECONDS
    progress.end()
    progress.end()
    assert said == [(2, 10)]
    clock.seconds += LEAST_PAUSE_SECONDS
    progress.update_finished({"a stage": 3, "another": 1})
    assert said[1:] == [(7, 10)]
    clock.seconds += LEAST_PAUSE_SECONDS
    progress.update_finished({})
    assert said.pop() == (7, 10), "what has ended is not taken back"
    clock.seconds += LEAST_PAUSE_SECONDS
    progress.end(7)
    assert said[2:] == [(10, 10)]


def test_a_job_of_a_day_says_some_hundred_times_how_far_it_is() -> None:
    clock, said = Clock(), list[tuple[int, int]]()
    progress = Progress(lambda done, total: said.append((done, total)), clock)
    progress.begin(86_400)
    for _ in range(86_400):
        clock.seconds += 1
        progress.end()
    assert 100 < len(said) < 500
    assert said[-1][0] > 80_000

"""The bytes that maintenance read within an hour, computed from Dagster's history alone."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, job

from assets.run_tags import bytes_tag
from pipelines import runs
from pipelines.runs import spent_bytes
from storage_core.base.errors import Unavailable

pytestmark = pytest.mark.dagster

HOUR_MS = 3_600_000


@job
def short() -> None:
    """Do nothing. The recorded runs use this job."""


def added(instance: DagsterInstance, status: DagsterRunStatus, **granted: int) -> None:
    instance.add_run(DagsterRun("short", status=status, tags=bytes_tag(granted)))


def now_ms(later_ms: int = 0) -> int:
    return round(time.time() * 1000) + later_ms


def test_a_run_counts_from_its_request_until_an_hour_after_its_end(instance: DagsterInstance) -> None:
    assert spent_bytes(instance, now_ms=now_ms()) == {}
    assert short.execute_in_process(instance=instance, tags=bytes_tag({"a": 10, "b": 1})).success
    assert spent_bytes(instance, now_ms=now_ms(HOUR_MS - 30_000)) == {"a": 10, "b": 1}
    assert spent_bytes(instance, now_ms=now_ms(HOUR_MS + 1_000)) == {}
    assert spent_bytes(instance, now_ms=now_ms(60_000), hour=timedelta(seconds=30)) == {}
    for status in (DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
        added(instance, status, a=100)
    assert spent_bytes(instance, now_ms=now_ms(5 * HOUR_MS)) == {"a": 300}
    assert spent_bytes(instance, now_ms=now_ms(25 * HOUR_MS)) == {}, "nothing was heard of it for a day"


def test_a_run_that_ended_before_it_started_read_nothing(instance: DagsterInstance) -> None:
    added(instance, DagsterRunStatus.CANCELED, a=100)
    added(instance, DagsterRunStatus.FAILURE, a=100)
    assert spent_bytes(instance, now_ms=now_ms()) == {}


def test_each_run_counts_once_whatever_the_page_and_too_many_are_refused(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PAGE", 2)
    for _ in range(5):
        added(instance, DagsterRunStatus.NOT_STARTED, a=1)
    assert spent_bytes(instance, now_ms=now_ms()) == {"a": 5}
    monkeypatch.setattr(runs, "MOST_RUNS", 4)
    with pytest.raises(Unavailable, match="more than 4 runs within an hour"):
        spent_bytes(instance, now_ms=now_ms())

"""What a run of a job costs: its time, that of Spark in it, and the requests of the driver and all tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jobs.reports.report import DRIVER, JobReport
from jobs.spark.spark import Answer, Spark
from storage_core.objectstore.meter import MeteredStore, add_requests


class RunCosts:
    """The time and the requests of one run, from when this is made."""

    def __init__(self, spark: Spark) -> None:
        self._started = time.perf_counter()
        self._spark = spark
        self._spark_seconds_before = spark.seconds
        self._task_requests: list[Mapping[str, int]] = []

    def take(self, answers: Sequence[Answer]) -> None:
        """Add the requests of these tasks."""
        self._task_requests += [answer["requests"] for answer in answers]

    def complete(self, report: JobReport, stores: Iterable[MeteredStore]) -> JobReport:
        """Return the report with what was spent so far, the requests of the driver to these stores among it."""
        spark_seconds = self._spark.seconds - self._spark_seconds_before
        return replace(
            report,
            requests=add_requests(*(each.requests for each in stores), *self._task_requests),
            seconds=round(time.perf_counter() - self._started, 3),
            spark_seconds=round(spark_seconds, 3),
            ran=self._spark.place if spark_seconds else DRIVER,
        )

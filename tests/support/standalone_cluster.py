"""A Spark standalone cluster on this machine, from the pip package: a master, and workers without a checkout.

    with StandaloneCluster(folder, workers=2, environment=server.environment) as cluster:
        command = [sys.executable, "-m", "jobs", "merge", "--master", cluster.master, …]
        subprocess.run(command, env=cluster.driver_environment)

The Python of the workers has the installed libraries, but not Tidemark. Each worker runs in its own folder. A task can
only import the parts of `jobs` and `storage_core` that the job has sent. Each worker has one core, so two concurrent
tasks need two workers.

A Spark Connect server can run on the cluster. The Connect server keeps its cores until the cluster ends:

    server = cluster.start_connect_server()
    command = [sys.executable, "-m", "jobs", "merge", "--master", server, …]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.request import ProxyHandler, build_opener

from jobs.spark.java import no_settings, spark_home
from tests.support import quick_java

_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
_RECORD_SECONDS = 120.0
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)\s")
_CONNECT_PORT = re.compile(r"Spark Connect server started at: .*:([1-9]\d*)\s")
_MASTER_PAGE = re.compile(r"Bound MasterWebUI to .* started at (http://\S+)\s")
# Different names of one machine. Spark does not run a second attempt of a task on the host of the first attempt.
_HOSTS = ("127.0.0.1", "localhost")
_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: re.Pattern[str]) -> str:
        """Return the matching part of the log when it appears. Raise `AssertionError` if no match can appear."""
        deadline = time.monotonic() + _START_SECONDS
        running = True
        while running and time.monotonic() < deadline:
            running = self.process.poll() is None  # before the log is read, so that no line is missed
            if found := pattern.search(self.log.read_text(encoding="utf-8")):
                return found.group(1)
            time.sleep(0.05)
        raise AssertionError(f"no {pattern.pattern!r} in {self.log}:\n{self.log.read_text(encoding='utf-8')[-2_000:]}")


@dataclass(slots=True)
class _Events:
    """The content of the event logs: the events by kind, and the numbers of started and ended tasks by executor."""

    kinds: Counter[str] = field(default_factory=Counter)
    beginnings: Counter[str] = field(default_factory=Counter)
    endings: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @property
    def whole(self) -> bool:
        """Return True if every job that began has ended."""
        return self.kinds["SparkListenerJobStart"] == self.kinds["SparkListenerJobEnd"]


class StandaloneCluster:
    """A master and its workers as processes on the loopback.

    The cluster is also a context manager that ends all these processes.

    All files are below `folder`. `environment` is additional environment (credentials) of the workers and their tasks.
    """

    def __init__(self, folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._workers = workers
        self._running = ExitStack()
        self._environment = {**_of_this_machine(), **(environment or {})}
        self._page = ""
        self.master = ""

    def __enter__(self) -> Self:
        """Start the processes, and wait until all workers have found the master. Raise `AssertionError` on failure."""
        (self._folder / "events").mkdir(parents=True)
        self._messages.write_text(_LOG4J, encoding="utf-8")
        with ExitStack() as failing:
            failing.push(self.__exit__)
            master = self._start_daemon("master", "master.Master", ["--host", _HOSTS[0], "--port", "0"])
            self.master = master.wait_for(_MASTER_URL)
            self._page = master.wait_for(_MASTER_PAGE)
            for number in range(self._workers):
                size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")]
                where = ["--host", _HOSTS[number % len(_HOSTS)], *size, self.master]
                self._start_daemon(f"worker-{number}", "worker.Worker", where)
            self._wait_for_workers()
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes. Executors end with their worker."""
        self._running.close()

    def start_connect_server(self, settings: Mapping[str, str] | None = None) -> str:
        """Start a Spark Connect server that runs its tasks on this cluster, and return its address (`sc://…`).

        The server has no checkout either. `settings` are Spark settings, in addition to the settings of every driver
        here.
        """
        settings = {
            **self._driver_settings,
            "spark.driver.extraJavaOptions": quick_java.options(self._messages),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.pyspark.python": str(self.worker_python),
            "spark.ui.enabled": "false",
            **(settings or {}),
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        started = self._start("connect", "SparkSubmit", ["--master", self.master, *options, *server])
        return f"sc://127.0.0.1:{started.wait_for(_CONNECT_PORT)}"

    @property
    def worker_environment(self) -> dict[str, str]:
        """The environment of a worker and its tasks."""
        return {
            **self._environment,
            "PYTHONPATH": str(_installed()),
            "SPARK_CONF_DIR": str(no_settings()),
            # Otherwise the master would also serve REST on a fixed port.
            "SPARK_DAEMON_JAVA_OPTS": f"{quick_java.options(self._messages)} -Dspark.master.rest.enabled=false",
            "SPARK_DAEMON_MEMORY": "512m",  # the minimum for a Connect server. The master and workers use less
            "SPARK_NO_DAEMONIZE": "1",
        }

    @property
    def driver_environment(self) -> dict[str, str]:
        """The environment variables of a job. The variables make the job use this cluster and record its tasks.

        Unlike its tasks, the job imports Tidemark in the usual way.
        """
        options = " ".join(f"--conf '{name}={value}'" for name, value in self._driver_settings.items())
        return {
            **os.environ,
            **self._environment,
            "PYSPARK_PYTHON": str(self.worker_python),
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        }

    @property
    def _driver_settings(self) -> dict[str, str]:
        return {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self._folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.extraJavaOptions": quick_java.options(),
            "spark.executor.extraJavaOptions": quick_java.options(self._messages),
            "spark.cores.max": str(self._workers),  # tasks start when each worker has an executor
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            # Spark waits 30 s by default, which is too short on a busy machine.
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_START_SECONDS:.0f}s",
        }

    @property
    def _messages(self) -> Path:
        """The log settings of the cluster's processes. The log shows when a process is ready."""
        return self._folder / "log4j2.properties"

    @property
    def worker_python(self) -> Path:
        """The Python of the tasks: this Python without packages that link to a checkout (`.pth` files)."""
        path = self._folder / "worker-python"
        if not path.exists():
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
            path.chmod(0o755)
        return path

    def tasks(self, ending: str = "Success") -> dict[str, int]:
        """Return the number of tasks with the result `ending` for each executor (application and number).

        Endings are named as in Spark's event log: `Success`, `TaskKilled`, `ExecutorLostFailure`. Spark writes the
        event log a little later than it replies. The call therefore waits for the end of every job whose start is in
        the log.
        """
        return dict(self._whole_events().endings[ending])

    def begun_tasks(self) -> dict[str, int]:
        """Return the number of started tasks by executor, as in `tasks`. All endings count."""
        return dict(self._whole_events().beginnings)

    def _whole_events(self) -> _Events:
        deadline = time.monotonic() + _RECORD_SECONDS
        while not (events := self._events()).whole:
            assert time.monotonic() < deadline, f"the record of a job has no end; see events in {self._folder}"
            time.sleep(0.05)
        return events

    def _events(self) -> _Events:
        found = _Events()
        for file in (self._folder / "events").glob("*/events_*"):
            application = ""
            text, _, _half_written = file.read_text(encoding="utf-8").rpartition("\n")
            for event in map(json.loads, filter(None, text.splitlines())):
                application = event.get("App ID", application)
                found.kinds[event["Event"]] += 1
                if event["Event"] not in ("SparkListenerTaskStart", "SparkListenerTaskEnd"):
                    continue
                executor = f"{application}/{event['Task Info']['Executor ID']}"
                if event["Event"] == "SparkListenerTaskStart":
                    found.beginnings[executor] += 1
                else:
                    found.endings[event["Task End Reason"]["Reason"]][executor] += 1
        return found

    def _start_daemon(self, name: str, role: str, arguments: list[str]) -> _Started:
        return self._start(name, role, ["--webui-port", "0", *arguments])

    def _start(self, name: str, role: str, arguments: list[str]) -> _Started:
        """Start a program of Spark by its class in `org.apache.spark.deploy`."""
        log = self._folder / f"{name}.log"
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self._folder,
                env=self.worker_environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        self._running.callback(_end, process)
        return _Started(process, log)

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        direct = build_opener(ProxyHandler({}))
        while time.monotonic() < deadline:
            with direct.open(f"{self._page}/json/", timeout=60) as answer:
                alive = json.load(answer)["aliveworkers"]
            if alive == self._workers:
                return
            time.sleep(0.1)
        raise AssertionError(f"not all of {self._workers} workers came up; see worker-*.log in {self._folder}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _of_this_machine() -> dict[str, str]:
    """Return the environment variables that Spark's scripts need.

    Variables that could let tasks import a source checkout are excluded.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR") if name in os.environ}
    return {**kept, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def _installed() -> Path:
    """Return the folder of the installed libraries."""
    return spark_home().parent

"""A Spark standalone cluster on this machine, from the pip package alone: a master and workers that know no checkout.

    with StandaloneCluster(folder, workers=2, environment=server.environment) as cluster:
        command = [sys.executable, "-m", "jobs.merge", "--master", cluster.master, …]
        subprocess.run(command, env=cluster.driver_environment)

The workers' Python has the installed libraries and not Tidemark, and they run in folders of their own: what a task
imports of `jobs` and `storage_core`, the job has sent. Each worker has one core, so two tasks at once need two workers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.request import ProxyHandler, build_opener

_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_MASTER_PAGE = re.compile(r"Bound MasterWebUI to .* started at (http://\S+)")
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the processor time of a JVM that lives for seconds
_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class StandaloneCluster:
    """A master and its workers as processes of their own, on the loopback; a context manager that ends them all.

    Everything is kept below `folder`; `environment` is what the workers, and so the tasks, have besides (credentials).
    """

    def __init__(self, folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._workers = workers
        self._running = ExitStack()
        self._environment = {**_of_this_machine(), **(environment or {})}
        self._page = ""
        self.master = ""

    def __enter__(self) -> Self:
        """Start the processes, and return when every worker has found the master. Raises `AssertionError` if not."""
        (self._folder / "conf").mkdir(parents=True)
        (self._folder / "events").mkdir()
        (self._folder / "conf" / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        # The master would serve REST on a fixed port as well.
        (self._folder / "conf" / "spark-defaults.conf").write_text(
            "spark.master.rest.enabled false\n", encoding="utf-8"
        )
        with ExitStack() as failing:
            failing.push(self.__exit__)
            log = self._start("master", "master.Master", ["--port", "0"])
            self.master = self._wait_for(log, _MASTER_URL)
            self._page = self._wait_for(log, _MASTER_PAGE)
            for number in range(self._workers):
                arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")]
                self._start(f"worker-{number}", "worker.Worker", [*arguments, self.master])
            self._wait_for_workers()
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; executors end with their worker."""
        self._running.close()

    @property
    def worker_environment(self) -> dict[str, str]:
        """What a worker and its tasks have in their environment."""
        return {
            **self._environment,
            "PYTHONPATH": str(_installed()),
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_START,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }

    @property
    def driver_environment(self) -> dict[str, str]:
        """What a job needs in its environment to use this cluster, and to leave a record of its tasks.

        The job, unlike its tasks, imports Tidemark as any process of this environment does.
        """
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (self._folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.extraJavaOptions": _QUICK_START,
            "spark.executor.extraJavaOptions": _QUICK_START,
            "spark.cores.max": str(self._workers),  # with the ratio: no task before every worker has its executor
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
        options = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
        return {
            **os.environ,
            **self._environment,
            "PYSPARK_PYTHON": str(self.worker_python),
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        }

    @property
    def worker_python(self) -> Path:
        """The Python of the tasks: this one without what is installed as a link to a checkout (`.pth` files)."""
        path = self._folder / "worker-python"
        if not path.exists():
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
            path.chmod(0o755)
        return path

    def tasks(self) -> dict[str, int]:
        """Return how many tasks of the jobs so far ended well, by executor (application and number of the executor)."""
        found: Counter[str] = Counter()
        for file in (self._folder / "events").glob("*/events_*"):
            application = ""
            for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
                event = json.loads(line)
                application = event.get("App ID", application)
                ended = event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success"
                if ended:
                    found[f"{application}/{event['Task Info']['Executor ID']}"] += 1
        return dict(found)

    def _start(self, name: str, role: str, arguments: list[str]) -> Path:
        log = self._folder / f"{name}.log"
        command = [str(_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                cwd=self._folder,
                env=self.worker_environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        self._running.callback(_end, process)
        return log

    def _wait_for(self, log: Path, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if found := pattern.search(log.read_text(encoding="utf-8")):
                return found.group(1)
            time.sleep(0.05)
        raise AssertionError(f"no {pattern.pattern!r} in {log}:\n{log.read_text(encoding='utf-8')[-2_000:]}")

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        direct = build_opener(ProxyHandler({}))
        while time.monotonic() < deadline:
            with direct.open(f"{self._page}/json/", timeout=10) as answer:
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
    """What Spark's scripts need of the environment, and nothing that would lead tasks to a checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR") if name in os.environ}
    return {**kept, "SPARK_HOME": str(_spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}


def _spark_home() -> Path:
    """Where the pip package is, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise AssertionError("the package pyspark is not installed; run `make setup`")
    return Path(spec.origin).parent


def _installed() -> Path:
    """Where the libraries are installed."""
    return _spark_home().parent

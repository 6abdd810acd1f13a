"""The start and the end of the Spark Connect server that `jobs.spark.warm` uses (decision 0039)."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from jobs.spark.java import QUICK, first_on_path, make, no_settings, options, require_java, spark_home, work
from jobs.spark.session import PRIVATE
from jobs.spark.spark import SmallWork, Spark, SparkUse
from jobs.spark.warm import WarmServer, code_digest, read, read_by_tasks
from pipelines.processes.supervision import start_program
from storage_core.base.errors import CONNECT, Unavailable, needs
from storage_core.base.process import holder_of, is_dead, locked_folder, open_own, private_folder

START_SECONDS = 180.0
END_SECONDS = 20.0

_LOOK_SECONDS = 0.1
_SETTINGS = {
    **PRIVATE,
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.session.manager.defaultSessionTimeout": "-1",  # a session must stay open until the next job
    "spark.python.daemon.module": "jobs.spark.warm_workers",
}


def up(file: Path, environment: Mapping[str, str]) -> tuple[WarmServer, bool]:
    """Return the server that the file describes, and whether this call started it.

    The server survives the end of this process.

    Raises:
        Unavailable: Java or a package is missing, or the server accepts no connections within three minutes.
    """
    found, process = _kept_or_started(file, environment, detached=True)
    return found, process is not None


def down(file: Path) -> WarmServer | None:
    """End the server that the file describes, and return its description. Return None if no server was running."""
    server = read(file)
    file.unlink(missing_ok=True)
    if server is None or is_dead(server.process):
        return None
    _end(server)
    return server


def keep(file: Path, environment: Mapping[str, str]) -> int:
    """Run a server until it ends, and return its exit code. The server also ends when this process ends."""
    server, process = _kept_or_started(file, environment, detached=False)
    while process is None:  # wait while another process runs the server
        time.sleep(1.0)
        server, process = _kept_or_started(file, environment, detached=False)
    try:
        return process.wait()
    finally:
        if read(file) == server:
            file.unlink()
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()


def log_of(file: Path) -> Path:
    """Return the log file of the server."""
    return file.with_suffix(".log")


def _kept_or_started(
    file: Path, environment: Mapping[str, str], *, detached: bool
) -> tuple[WarmServer, subprocess.Popen[bytes] | None]:
    """Return the server that the file describes. If this call started the server, also return its process.

    Only one process at a time starts a server.
    """
    with _alone(file):
        found = read(file)
        if found is not None and found.answers:
            return found, None
        process, server = _start(file, environment, detached=detached)
        try:
            _wait(process, server, file)
            _first_tasks()
        except BaseException:
            file.unlink(missing_ok=True)
            process.kill()
            raise
        return server, process


def _start(file: Path, environment: Mapping[str, str], *, detached: bool) -> tuple[subprocess.Popen[bytes], WarmServer]:
    with needs(CONNECT, "a warm Spark"):
        import grpc  # type: ignore[import-untyped]  # noqa: F401  # it has no types, and jobs need it
    require_java()
    make()
    port, token = _free_port(), secrets.token_urlsafe(24)
    files, lock = locked_folder("spark")  # if the server with this lock has ended, another process removes the folder
    settings = {
        **_SETTINGS,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": options(QUICK),
        "spark.local.dir": str(files),
    }
    command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    given = {
        **{name: value for name, value in environment.items() if name not in ("SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")},
        **first_on_path(environment),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(no_settings()),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": QUICK,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    try:
        process = _process(command, given, lock, log_of(file) if detached else None)
    finally:
        os.close(lock)
    server = WarmServer(
        process=holder_of("warm Spark", process.pid),
        port=port,
        token=token,
        made_of=code_digest(),
        environment=read_by_tasks(environment, token),
    )
    return process, server


def _process(
    command: Sequence[str], environment: Mapping[str, str], lock: int, log: Path | None
) -> subprocess.Popen[bytes]:
    """Start the server, and return its process.

    If there is a log file, the server continues when this process ends. Otherwise, the server ends with this process.
    """
    if log is None:
        return start_program(command, environment, pass_fds=[lock])
    with os.fdopen(open_own(log, os.O_WRONLY | os.O_TRUNC), "wb") as opened:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            start_new_session=True,
            pass_fds=[lock],
        )


def _wait(process: subprocess.Popen[bytes], server: WarmServer, file: Path) -> None:
    """Wait until the server accepts connections. Then write `server` to `file`. Raises `Unavailable`."""
    until = time.monotonic() + START_SECONDS
    while not server.answers:
        if process.poll() is not None or time.monotonic() > until:
            raise Unavailable(f"the warm Spark did not start. {log_of(file)} may contain the cause.")
        time.sleep(_LOOK_SECONDS)
    half = file.with_suffix(f".{os.getpid()}")
    with suppress(FileNotFoundError):
        half.unlink()
    with os.fdopen(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as written:
        written.write(server.to_json())
    half.replace(file)


def _first_tasks() -> None:
    """Run tasks that initialize the server, so that the first job does not wait for the initialization."""
    with Spark(small=SmallWork(use=SparkUse.ALWAYS)) as spark:
        spark.map(work, [{}] * (os.cpu_count() or 1))


def _end(server: WarmServer) -> None:
    until = time.monotonic() + END_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(server.pid, number)
        while server.answers and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Run the block under a lock. Only one process at a time holds the lock for this file.

    Raises `Unavailable` if the folder of the file is not private.
    """
    private_folder(file.parent)
    with os.fdopen(open_own(file.with_suffix(".lock"), os.O_WRONLY), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

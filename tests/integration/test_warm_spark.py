"""A warm Spark server: the jobs that use it, the jobs that do not use it, and the behaviour after it has ended."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # gRPC has no types
import pyarrow as pa
import pytest

from jobs.spark import warm
from jobs.spark.java import ROOT
from jobs.spark.warm import WarmServer, code_digest, read_by_tasks
from pipelines.cli import main
from storage_core.base.errors import Unavailable
from storage_core.base.process import holder_of
from tidemark import Table

pytestmark = pytest.mark.spark

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a"}
TOKEN = "nobody else's"  # noqa: S105  # of no server

JOINS_NOTHING = """
import os
from jobs.spark import warm
before = dict(os.environ)
assert warm.join({"spark.sql.session.timeZone": "UTC"}, os.environ) is None
assert dict(os.environ) == before  # by which PySpark would look for a server instead of starting its own
"""


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def server(listening: int) -> WarmServer:
    """Return the record of a warm server that runs in this process and that a job can use."""
    found = WarmServer(
        process=holder_of("warm Spark", os.getpid()),
        port=listening,
        token=TOKEN,
        made_of=code_digest(),
        environment=read_by_tasks(CREDENTIALS, TOKEN),
    )
    warm.require_fitting(found, CREDENTIALS)
    return found


ALONE = "TIDEMARK_TEST_ALONE"


def why_not(server: WarmServer, environment: Mapping[str, str], folder: Path, log: pytest.LogCaptureFixture) -> str:
    """Return the log line with the reason why a job does not use the server."""
    (file := folder / "server.json").write_text(server.to_json(), encoding="utf-8")
    log.clear()
    with log.at_level(logging.INFO, "jobs.spark.warm"):
        assert warm.join({}, {**environment, warm.SERVER: str(file)}) is None
    (line,) = [each.getMessage() for each in log.records]
    assert server.token not in line
    return line


def test_a_server_of_other_code_or_credentials_or_none_is_not_used_and_one_line_says_why(
    server: WarmServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = replace(server, made_of="of yesterday")
    assert "was started with another version, Python or Java" in why_not(other, CREDENTIALS, tmp_path, caplog)
    assert "with other AWS_" in why_not(server, {"AWS_ACCESS_KEY_ID": "b"}, tmp_path, caplog)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = holder_of("warm Spark", ended.pid)
    ended.wait()
    assert "does not run any more" in why_not(replace(server, process=process), CREDENTIALS, tmp_path, caplog)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "does not run any more" in why_not(replace(server, port=port), CREDENTIALS, tmp_path, caplog)


class Neighbour(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """A server that accepts every call and records the received secrets."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []

    def service(self, details: Any) -> Any:
        self.heard.append(dict(details.invocation_metadata).get("authorization"))
        return grpc.unary_unary_rpc_method_handler(lambda _, call: call.abort(grpc.StatusCode.PERMISSION_DENIED, "no"))


def test_the_token_goes_to_the_literal_address_of_the_server_and_to_this_users_socket_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not os.environ.get(ALONE):  # a process with a Spark session cannot create another session
        name = test_the_token_goes_to_the_literal_address_of_the_server_and_to_this_users_socket_only.__name__
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{name}"]
        environment = {**os.environ, ALONE: "1"}
        ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout
        return
    own, other = Neighbour(), Neighbour()
    servers = [grpc.server(ThreadPoolExecutor(2), handlers=(each,)) for each in (own, other)]
    port = servers[0].add_insecure_port("127.0.0.1:0")
    servers[1].add_secure_port(f"[::1]:{port}", grpc.local_server_credentials())
    for each in servers:
        each.start()
    made = WarmServer(
        process=holder_of("warm Spark", os.getpid()),
        port=port,
        token=TOKEN,
        made_of=code_digest(),
        environment=read_by_tasks({}, TOKEN),
    )
    assert made.address(uuid.uuid4()).startswith(f"sc://127.0.0.1:{port}/;")
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "of another server")
    try:
        assert "does not accept a session" in why_not(made, {}, tmp_path, caplog)
        assert (set(own.heard), other.heard) == ({f"Bearer {TOKEN}"}, [])
        assert os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN") == "of another server"
        own.heard.clear()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # the socket belongs to another user
        assert "does not run any more" in why_not(made, {}, tmp_path, caplog)
        assert own.heard == []
    finally:
        for each in servers:
            each.stop(None).wait()


def test_a_file_that_is_none_of_a_server_is_as_no_file(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"process": 1}'):
        (tmp_path / "server.json").write_text(text, encoding="utf-8")
        assert warm.read(tmp_path / "server.json") is None


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the folder for the warm Spark process with permissions that let other users write to it."""
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TIDEMARK_SPARK_SERVER", raising=False)
    (folder := tmp_path / "cache-spark").mkdir()
    folder.chmod(0o777)
    return folder


def test_a_folder_of_the_warm_spark_that_others_may_write_to_is_not_used(
    taken: Path, server: WarmServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = taken.parent / "victim"
    victim.write_text("precious")
    for name in ("server.lock", "server.log"):
        (taken / name).symlink_to(victim)
    (taken / "server.json").write_text(server.to_json(), encoding="utf-8")
    (taken / "server.json").chmod(0o600)
    for action in ("up", "status", "down"):
        assert main(["spark", action]) == 5
        said = "".join(capfd.readouterr())
        assert f"other users can write to {taken}. Remove the path" in said
    with caplog.at_level(logging.INFO, "jobs.spark.warm"):
        assert warm.join({}, {**CREDENTIALS, "TIDEMARK_CACHE_DIR": str(taken.parent / "cache")}) is None
    assert "other users can write" in caplog.text
    assert victim.read_text() == "precious"
    assert (taken / "server.json").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_files_of_the_warm_spark_are_believed_from_a_private_folder_only(
    server: WarmServer, tmp_path: Path, *, is_link: bool
) -> None:
    (file := tmp_path / "server.json").write_text(server.to_json(), encoding="utf-8")
    assert warm.read(file) == server
    if is_link:
        file.rename(tmp_path / "moved")
        file.symlink_to(tmp_path / "moved")
    else:
        file.chmod(0o622)
    with pytest.raises(Unavailable, match=r"is a link|other users can write"):
        warm.read(file)


def test_the_folders_beside_the_cache_are_their_users_alone_under_any_umask(tmp_path: Path) -> None:
    program = """
import os, stat, sys
from pathlib import Path
os.umask(0)
from jobs.spark import java
from jobs.spark.warm import file_of
from pipelines.processes.warm_server import _alone
java.ROOT = Path("/of/an/installed/wheel")
java.no_settings()
with _alone(file_of(os.environ)):
    pass
print([str(each) for each in Path(sys.argv[1]).rglob("*") if each.stat().st_mode & 0o077])
(java.folder() / "no-settings").chmod(0o777)
try:
    java.no_settings()
except Exception as error:
    print(error)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home" / "of" / "caches")}
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ended.stdout.splitlines()
    assert lines[0] == "[]"
    assert lines[1].startswith("other users can write to ")


def test_status_ends_with_5_where_jobs_would_start_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK_SERVER", str(tmp_path / "server.json"))
    assert main(["spark", "status"]) == 5
    assert capfd.readouterr().out == "no warm Spark was started. Start the warm Spark with `tidemark spark up`.\n"


def test_up_says_on_standard_error_that_it_makes_an_archive_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    java = tmp_path / "java"
    for name, text in {
        "bin/java": "#!/bin/sh\nexit 1\n",
        "lib/server/classes.jsa": "",
        "release": str(tmp_path),
    }.items():
        (java / name).parent.mkdir(parents=True, exist_ok=True)
        (java / name).write_text(text, encoding="utf-8")
    (java / "bin" / "java").chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("TIDEMARK_SPARK_SERVER", str(tmp_path / "spark" / "server.json"))
    assert main(["spark", "up"]) == 5
    said = capfd.readouterr().err
    assert said.startswith("Spark's classes are stored in an archive")
    assert said.count("half a minute") == 1


def tidemark(*arguments: str, environment: Mapping[str, str], ends_with: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "pipelines.cli", *arguments, "--json"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == ends_with, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def begin(table: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jobs", "compact", "--table-uri", table, "--spark", "always", "--json"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ran(job: subprocess.Popen[str]) -> tuple[str, int, str]:
    """Return the location of a job's run, its number of written rows, and its output."""
    output, errors = job.communicate(timeout=300)
    assert job.returncode == 0, errors
    report = json.loads(output)
    return report["ran"], report["rows_out"], errors


@pytest.mark.timeout(600)
def test_jobs_share_a_warm_spark_and_go_on_without_it_once_it_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TIDEMARK_SPARK_SERVER": str(tmp_path / "spark" / "server.json")}
    made = Table.create(str(tmp_path / "made"), pa.schema([("n", pa.int64())]))
    for number in range(3):
        made.append([{"n": number}, {"n": number}])
    tables = [str(shutil.copytree(tmp_path / "made", tmp_path / name)) for name in ("one", "two", "three")]

    up = tidemark("spark", "up", environment=environment)
    try:
        assert up["started"]
        assert not tidemark("spark", "up", environment=environment)["started"]
        assert tidemark("spark", "status", environment=environment)["used"]
        assert (tmp_path / "spark" / "server.json").stat().st_mode & 0o777 == 0o600
        place = f"warm Spark at 127.0.0.1:{up['port']}"
        together = [begin(each, environment) for each in tables[:2]]
        assert [ran(each)[:2] for each in together] == [(place, 6), (place, 6)]
        found = warm.read(tmp_path / "spark" / "server.json")
        assert found is not None
        other = replace(found, token=TOKEN, environment=read_by_tasks(environment, TOKEN))
        (tmp_path / "other.json").write_text(other.to_json(), encoding="utf-8")
        refused = {**environment, "TIDEMARK_SPARK_SERVER": str(tmp_path / "other.json")}
        subprocess.run([sys.executable, "-c", JOINS_NOTHING], cwd=ROOT, env=refused, check=True)
    finally:
        os.kill(up["pid"], signal.SIGKILL)

    where, rows, said = ran(begin(tables[2], environment))
    assert (where, rows) == ("spark (own session)", 6)
    assert "a Spark of its own is started: the warm Spark does not run any more" in said
    assert not tidemark("spark", "status", environment=environment, ends_with=5)["used"]
    assert tidemark("spark", "down", environment=environment) == {"ended": False}

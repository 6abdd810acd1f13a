"""The Spark that jobs use: the named master, or the Connect server in the environment, and never a guess."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.spark import java
from jobs.spark.java import ROOT
from jobs.spark.session import connect, failure_of, require_master, resolved, start
from jobs.spark.spark import Spark
from storage_core.base.errors import InvalidInput, NotFound, Unavailable
from storage_core.data.steps import LOCAL_SPARK

SERVER = "sc://spark.example:15002"


def test_the_master_that_was_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert [resolved(each) for each in (LOCAL_SPARK, "spark://host:7077", SERVER)] == [
        LOCAL_SPARK,
        "spark://host:7077",
        SERVER,
    ]


def test_the_server_of_the_environment_takes_the_place_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", SERVER)
    assert resolved(LOCAL_SPARK) == SERVER
    assert resolved("sc://other:15002") == "sc://other:15002"
    monkeypatch.setenv("SPARK_REMOTE", "")
    assert resolved(LOCAL_SPARK) == LOCAL_SPARK


def test_a_master_beside_the_server_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", SERVER)
    with pytest.raises(InvalidInput, match=r"both the master spark://host:7077 and SPARK_REMOTE=sc://spark\.example"):
        resolved("spark://host:7077")


def test_what_is_no_connect_server_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with pytest.raises(
        InvalidInput, match=r"SPARK_REMOTE=local\[2\] is not a Spark Connect server. Write SPARK_REMOTE as sc://"
    ):
        resolved(LOCAL_SPARK)


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of a server that accepts connections and sends nothing, like a hung server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def refused() -> int:
    """Return a port without a listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("master", ["nope", "", "spark://", "local[", "http://host:7077"])
def test_a_master_of_an_unknown_form_is_refused_before_any_work(master: str) -> None:
    with pytest.raises(InvalidInput, match=r"the Spark master is .*\. Write local\[\*\], spark://host:port"):
        Spark(master)


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "local-cluster[1,1,1024]", "yarn", "spark://a:1,b:2", "k8s://a", "sc://a"],
)
def test_a_master_of_a_known_form_is_accepted(master: str) -> None:
    with Spark(master) as spark:
        assert spark is not None


def test_an_address_without_a_connect_server_is_named_within_the_time_for_it(silent: int, refused: int) -> None:
    for port in (silent, refused):
        found = (
            rf"no Spark Connect server answers at sc://127\.0\.0\.1:{port} \(no answer within 0\.2 s\)\. "
            r"Start the Spark server, or correct"
        )
        with pytest.raises(Unavailable, match=found):
            connect(f"sc://127.0.0.1:{port}", {}, wait_seconds=0.2)
    with pytest.raises(InvalidInput, match=r"sc://127\.0\.0\.1/table is not an address of a Spark Connect server: "):
        connect("sc://127.0.0.1/table", {})


def test_masters_of_which_none_takes_connections_are_named_at_once_and_without_java(refused: int) -> None:
    master = f"spark://127.0.0.1:{refused},localhost:{refused}"
    with pytest.raises(Unavailable) as error, Spark(master) as spark:
        spark.map(dict, [{}])
    assert str(error.value).startswith(f"no Spark master answers at {master} (127.0.0.1:{refused}: ")
    assert f"; localhost:{refused}: " in str(error.value)


def test_one_master_of_several_is_enough(silent: int, refused: int) -> None:
    require_master(f"spark://127.0.0.1:{refused},127.0.0.1:{silent}")
    require_master("local[2]")


AWAY = """
import time
time.sleep = lambda _: None  # before PySpark takes it for its pauses
from concurrent.futures import ThreadPoolExecutor
import grpc
from jobs.spark.session import connect, require_master
from storage_core.base.errors import Unavailable

calls = []

class Away(grpc.GenericRpcHandler):
    def service(self, details):
        calls.append(details.method)
        return grpc.unary_unary_rpc_method_handler(refuse)

def refuse(request, context):
    context.abort(grpc.StatusCode.UNAVAILABLE, "away")

server = grpc.server(ThreadPoolExecutor(1), handlers=[Away()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
try:
    connect(f"sc://127.0.0.1:{port}", {"spark.sql.session.timeZone": "UTC"})
except Unavailable as error:
    print(len(calls), str(error).replace(str(port), "PORT"))
server.stop(None).wait()
"""


def test_a_proxy_whose_server_is_away_is_asked_a_few_times_and_not_for_ten_minutes(tmp_path: Path) -> None:
    ended = run(AWAY, tmp_path)
    assert ended.stdout.startswith('5 no Spark Connect server answers at sc://127.0.0.1:PORT ("away"). '), ended.stderr


WITHOUT_PACKAGES = """
import sys
sys.modules["grpc_status"] = None
from jobs.spark.spark import Spark
from storage_core.base.errors import Unavailable
try:
    Spark("sc://127.0.0.1:1").map(len, [{}])
except Unavailable as error:
    print(error)
"""


def test_a_connect_server_without_the_packages_for_it_is_an_error_that_says_which(tmp_path: Path) -> None:
    ended = run(WITHOUT_PACKAGES, tmp_path)
    assert ended.stdout.startswith(
        "Spark Connect needs packages: pip install '.[connect]' in the folder of Tidemark's source ("
    ), ended.stderr
    assert "grpcio-status" in ended.stdout


def run(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program `source` in a new process, because a process cannot change PySpark's choice of Connect."""
    script = folder / "script.py"  # without a script file, PySpark assumes a run of its own doctests and exits
    script.write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=rf"JAVA_HOME={re.escape(str(tmp_path))} has no bin/java"):
        start(LOCAL_SPARK)


def test_the_java_that_the_setup_brought_along_is_taken_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "PRIVATE_JAVA", tmp_path / "java")
    with pytest.raises(Unavailable, match="install one, or set JAVA_HOME"):
        java.require_java()
    (tmp_path / "java").mkdir()
    java.require_java()
    assert os.environ["JAVA_HOME"] == str(java.java_home()) == str(tmp_path / "java")


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Error while reading file file:///lake/dv.bin. File", "file:///lake/dv.bin"),
        ("java.io.FileNotFoundException: File file:/lake/dv.bin does not exist", "file:/lake/dv.bin"),
        ("java.nio.file.NoSuchFileException: /lake/dv.bin", "/lake/dv.bin"),
    ],
)
def test_a_file_that_spark_misses_is_named_without_the_text_of_java(text: str, file: str) -> None:
    from pyspark.errors import PySparkException

    found = failure_of(PySparkException(f"An error occurred\n: {text}"))
    assert isinstance(found, NotFound)
    assert str(found) == f"Spark reads the file {file}, which is missing. Restore the file, then run again"

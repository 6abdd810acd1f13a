"""Where jobs find Spark: the master that was named, or the Connect server of the environment; without guessing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.code_archive import ROOT
from jobs.master import LOCAL_SPARK, named
from jobs.spark import start
from storage_core.errors import InvalidInput, Unavailable

SERVER = "sc://spark.example:15002"


def test_the_master_that_was_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert [named(each) for each in (LOCAL_SPARK, "spark://host:7077", SERVER)] == [
        LOCAL_SPARK,
        "spark://host:7077",
        SERVER,
    ]


def test_the_server_of_the_environment_takes_the_place_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", SERVER)
    assert named(LOCAL_SPARK) == SERVER
    assert named("sc://other:15002") == "sc://other:15002"
    monkeypatch.setenv("SPARK_REMOTE", "")
    assert named(LOCAL_SPARK) == LOCAL_SPARK


def test_a_master_beside_the_server_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", SERVER)
    with pytest.raises(InvalidInput, match=r"both the master spark://host:7077 and SPARK_REMOTE=sc://spark\.example"):
        named("spark://host:7077")


def test_what_is_no_connect_server_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with pytest.raises(InvalidInput, match=r"SPARK_REMOTE=local\[2\] is no Spark Connect server: name one as sc://"):
        named(LOCAL_SPARK)


WITHOUT_PACKAGES = """
import sys
sys.modules["grpc_status"] = None
from jobs.spark import Spark
from storage_core.errors import Unavailable
try:
    Spark("sc://127.0.0.1:1").map(len, [{}])
except Unavailable as error:
    print(error)
"""


def test_a_connect_server_without_the_packages_for_it_is_an_error_that_says_which(tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # PySpark takes a process without a file for its own doctests, and leaves it
    script.write_text(WITHOUT_PACKAGES, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stdout.startswith("Spark Connect needs packages: pip install 'tidemark[connect]' ("), ended.stderr
    assert "grpcio-status" in ended.stdout


def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match=rf"JAVA_HOME={re.escape(str(tmp_path))} has no bin/java"):
        start(LOCAL_SPARK)

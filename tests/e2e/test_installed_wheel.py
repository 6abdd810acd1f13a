"""The wheel in new environments: `pip install tidemark` alone is enough to write and to read tables.

The packages are installed as in `make setup`: from the lock files, by uv or pip.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.installer import REQUIREMENTS, ROOT, find_uv, install, make_environment

SOURCES = ("assets", "jobs", "pipelines", "storage_core", "tidemark")
FILES = ("LICENSE", "NOTICE", "README.md", "pyproject.toml")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
PIPELINE = ("dagster", "dagster_pipes", "dagster_webserver", "pandas", "py4j", "pyspark")

PROGRAM = """
import datetime as dt, json, sys
import pyarrow as pa, tidemark as tm
words = {"name": "words", "kind": "fulltext", "columns": ["path"]}
schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("path", pa.string())])
logs = tm.Table.create("logs", schema, time_column="at", indexes=[words])
while logs.snapshot.checkpoint_version is None:
    logs.append({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "path": f"hello {logs.version}"})
    logs = tm.Table.open("logs")
people = tm.Table.create("people", pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_key="id")
people.append({"id": 1, "name": "Ada"})
missing = []
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ModuleNotFoundError:
        missing.append(name)
print(json.dumps({
    "scan": logs.scan(["path"], filter=tm.col("path") == "hello 3").to_arrow().to_pylist(),
    "sql": logs.sql("select count(*) as n from t").to_pylist() == [{"n": logs.version}],
    "search": logs.search("3", index="words").column("path").to_pylist(),
    "get": people.get(1),
    "missing": missing,
}))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel installed, and a working folder."""

    environment: Path
    folder: Path

    def ran(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without this repository on its path."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))}
        program = [str(self.environment / "bin" / command[0]), *command[1:]]
        return subprocess.run(
            program, cwd=self.folder, env={**clean, **environment}, capture_output=True, text=True, check=False
        )

    def said(self, *command: str) -> str:
        """Return the standard output of a program that must succeed."""
        ended = self.ran(*command)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
        return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of Tidemark. The installed, locked build tools build the wheel from a copy of the sources."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run([sys.executable, "-c", BUILD, made], cwd=source, check=True, capture_output=True, text=True)
    return made / built.stdout.splitlines()[-1]


def installed(folder: Path, locks: Sequence[str], wheel: Path) -> Installed:
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    make_environment(environment, find_uv())
    python = environment / "bin" / "python"
    for lock in locks:
        install(python, "--require-hashes", "--no-build-isolation", "-r", str(REQUIREMENTS / f"{lock}.lock"))
    install(python, "--no-deps", str(wheel))
    return Installed(environment, work)


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(tmp_path_factory.mktemp("core"), ["build", "core"], wheel)


def test_the_wheel_holds_the_product_and_nothing_for_tests(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        files = {Path(name): archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    assert {path.parts[0] for path in files} == {*SOURCES}
    testing = re.compile(r"^\s*(?:import|from) (?:tests|pytest|hypothesis|moto)\b", re.MULTILINE)
    assert sorted(path.as_posix() for path, text in files.items() if testing.search(text)) == []


def test_the_core_lock_has_what_the_wheel_asks_for_and_nothing_of_the_pipeline(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        requested = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    lock = (REQUIREMENTS / "core.lock").read_text(encoding="utf-8")
    pinned = {canonicalize_name(each) for each in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    needed = [
        each for each in map(Requirement, requested) if each.marker is None or each.marker.evaluate({"extra": ""})
    ]
    assert {canonicalize_name(each.name) for each in needed} <= pinned
    assert {canonicalize_name(each) for each in PIPELINE} & pinned == set()


def test_the_core_writes_and_reads_tables_without_the_pipeline(core: Installed) -> None:
    found = json.loads(core.said("python", "-c", PROGRAM, *PIPELINE))
    assert found == {
        "scan": [{"path": "hello 3"}],
        "sql": True,
        "search": ["hello 3"],
        "get": {"id": 1, "name": "Ada"},
        "missing": list(PIPELINE),
    }
    described = json.loads(core.said("tidemark", "describe", "./logs", "--json"))
    assert described["live_splits"] == described["rows"] > 0
    for question in (("sql", "./logs", "select 1 from t limit 1"), ("search", "./logs", "3", "--index", "words")):
        assert core.said("tidemark", *question, "--json")
    assert json.loads(core.said("tidemark", "get", "./people", "1", "--json")) == {"id": 1, "name": "Ada"}
    assert core.said("tidemark", "files", "./logs", "--json")
    assert core.said("tidemark", "history", "./logs", "--json")


def test_a_command_that_needs_the_pipeline_says_so(core: Installed) -> None:
    tables = core.folder / "tables"
    tables.mkdir()
    declared = "name: events\nuri: events\ncolumns: {at: timestamp!}\ntime_column: at\nwindow: 1h\n"
    (tables / "events.yaml").write_text(declared, encoding="utf-8")
    core.said("tidemark", "init", "--json")
    for _ in range(3):
        core.said(
            "python",
            "-c",
            "import tidemark as tm, datetime as dt; "
            "tm.Table.open('events').append({'at': dt.datetime(2026, 1, 1, tzinfo=dt.UTC)})",
        )
    day = ("--from", "2026-01-01T00:00", "--to", "2026-01-02T00:00")
    for command in (("ui",), ("backfill", "--table", "events", *day), ("compact", "events", "--all")):
        ended = core.ran("tidemark", *command, TIDEMARK_SPARK="always")
        assert ended.returncode == 5, (command, ended.stdout, ended.stderr)
        assert "pip install '.[pipeline]'" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert "ran: driver" in core.said("tidemark", "compact", "events", "--all")  # small work needs no Spark


def test_the_pipeline_extra_brings_the_rest(wheel: Path, tmp_path: Path) -> None:
    whole = installed(tmp_path, ["build", "demo"], wheel)
    whole.said("python", "-c", f"import {', '.join(PIPELINE)}")
    for command in ("ui", "backfill", "compact"):
        assert whole.said("tidemark", command, "--help")
    (whole.folder / "tables").mkdir()
    assert whole.said("python", "-W", "ignore", "-c", "import pipelines.definitions as d; print(d.defs)")

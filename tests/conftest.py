"""Fixtures and pytest hooks that all tests share.

Hypothesis runs without deadlines, and no personal setting of the user reaches a test. The `checkout` fixture copies the
root of the repository, so that a test can land files, create tables and run Dagster there.
"""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import draws
from tests.run_times import OneSpark, RunTimes, longest_first
from tests.support import quick_java
from tests.support.scale import scale
from tests.tiers import is_extended, is_nightly, tier_of

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from xdist.remote import Producer

    from jobs.spark.spark import Spark
    from storage_core.catalog.catalog import Catalog
    from tests.support.postgres import Postgres
    from tests.support.s3_server import S3Server

REPOSITORY = Path(__file__).resolve().parents[1]
PARTS = ("storage_core", "jobs", "assets", "pipelines", "dagster.yaml", "workspace.yaml")

# Port numbers for the tests. The operating system selects the ports of outgoing connections from a higher range. The
# system could give a port of its range to a connection before a test uses this port.
PORTS = range(20_000, 32_000)

Land = Callable[..., Path]

# On two busy cores, deadlines fail at random. The check that data is generated fast enough also fails at random.
# Hypothesis prints a failing example, so that it can be replayed. Each run tries the same examples, so that only a
# change makes a run fail. A run with more examples (`SCALE`) tries different ones each time.
settings.register_profile(
    "tidemark",
    deadline=None,
    derandomize=scale() <= 1,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tidemark")


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes that `-n auto` starts: the number of cores plus 1, because many tests wait."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Register the reporter of test times in the process that reports all tests."""
    if not hasattr(config, "workerinput"):
        output = os.environ.get("TIDEMARK_TEST_TIMES")
        config.pluginmanager.register(RunTimes(Path(output) if output else None))


def pytest_report_header() -> str:
    """Return a header line with the seed that selects the cases of test matrices.

    With this seed a user can repeat the run.
    """
    seed = draws.seed()
    return f"matrices: cases drawn by TIDEMARK_DRAW={seed}" if seed else "matrices: all cases"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    """Return a scheduler that gives each test file to one worker.

    All files with the shared Spark session go to the same worker.
    """
    return OneSpark(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip test files if `-m` selects none of their tests. Each process needs half a minute to load all files."""
    if collection_path.suffix != ".py":
        return None
    wanted = config.option.markexpr.split(" and ")[0]
    if wanted == "browser":
        return None if "mark.browser" in collection_path.read_text(encoding="utf-8") else True
    return True if wanted == "not extended" and _tier_of(collection_path) == "extended" else None


@cache
def _tier_of(path: Path) -> str | None:
    return tier_of(path.relative_to(REPOSITORY).as_posix(), partial(path.read_text, encoding="utf-8"))


@pytest.hookimpl(tryfirst=True)  # runs before `-m` selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by tier, select the matrix cases of this run, and put the longest files first.

    Raises:
        pytest.UsageError: A test is not of the tier of its file.
    """
    for item in items:
        file = _file(item)
        needs = {mark.name for mark in item.iter_markers()}
        needs.update(item.fixturenames if isinstance(item, pytest.Function) else ())
        is_left_out = is_extended(file, item.name, needs)
        if is_left_out:
            item.add_marker(pytest.mark.extended)
        if is_nightly(file, item.name):
            item.add_marker(pytest.mark.nightly)
        if _tier_of(item.path) == ("first" if is_left_out else "extended"):
            raise pytest.UsageError(f"{item.nodeid} is of another tier than tests/tiers.py takes its whole file for")
    seed = draws.seed()
    if seed:
        left_out = draws.left_out((item.nodeid for item in items if item.get_closest_marker("extended")), seed)
        items[:] = [item for item in items if item.nodeid not in left_out]
    items.sort(key=lambda item: longest_first(_file(item)))


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(REPOSITORY).as_posix()


@pytest.fixture(scope="session", autouse=True)
def _no_personal_settings() -> Iterator[None]:
    """Keep tests away from the Dagster instance and the cache of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        patch.delenv("TIDEMARK_CACHE_DIR", raising=False)
        patch.setenv("TIDEMARK_CACHE_MIB", "0")
        patch.setenv("TIDEMARK_SPARK_SERVER", "/nowhere/server.json")
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> Iterator[None]:
    """Start Spark with a Java that is fast to start. Tests start Spark dozens of times, each time for a short run."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_java.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """Return the one Spark session of this process.

    A job that a test runs in this process uses this session, for any value of `--master`.
    """
    from jobs.spark.spark import Spark  # the import takes a second, and only tests with Spark need Spark

    with Spark("local[2]") as running:
        running.session()
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return the one PostgreSQL server of this process. A test fails if the server cannot start."""
    from tests.support.postgres import running  # only tests with a database need this slow import

    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty SQL database.

    A test with this fixture runs once for each kind of database that a catalog supports.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.owned_place()


@pytest.fixture
def history(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """Return the Dagster instance settings that locate the run history.

    Processes that a test starts use the same settings.

    The history is in SQLite. The history is in PostgreSQL if the test requests PostgreSQL or `TIDEMARK_TEST_POSTGRES`
    is set (`make test-postgres`).
    """
    default = "postgresql" if os.environ.get("TIDEMARK_TEST_POSTGRES") else "sqlite"
    if getattr(request, "param", default) == "sqlite":
        monkeypatch.delenv("TIDEMARK_DAGSTER_POSTGRES", raising=False)
        return {}
    server: Postgres = request.getfixturevalue("postgres")
    monkeypatch.setenv("TIDEMARK_DAGSTER_POSTGRES", server.place())
    return {"storage": {"custom": {"module": "pipelines.instance", "class": "PostgresHistory", "config": {}}}}


@pytest.fixture
def kept_instance(history: Mapping[str, object], tmp_path: Path) -> Iterator[DagsterInstance]:
    """Return a persistent Dagster instance that other threads and schedules can open: in files, or in PostgreSQL."""
    from dagster import DagsterInstance  # the import takes a second, and only tests with Dagster need Dagster

    folder = tmp_path / "history"
    folder.mkdir()
    with DagsterInstance.local_temp(str(folder), {"telemetry": {"enabled": False}, **history}) as opened:
        yield opened


@pytest.fixture
def instance(request: pytest.FixtureRequest, history: Mapping[str, object]) -> Iterator[DagsterInstance]:
    """Return a fast Dagster instance for this thread only: in memory, or in PostgreSQL if `history` requires it."""
    from dagster import DagsterInstance

    if history:
        yield request.getfixturevalue("kept_instance")
    else:
        with DagsterInstance.ephemeral() as opened:
            yield opened


@pytest.fixture
def catalog(database_url: str) -> Iterator[Catalog]:
    """Return a catalog without tables."""
    from storage_core.catalog.opening import open_catalog  # most tests do not load SQLAlchemy

    with open_catalog(database_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    from tests.support.s3_server import S3Server  # the import takes a second, and only tests with S3 need the server

    with S3Server() as server:
        yield server


@pytest.fixture
def s3_server(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Return an S3 server without scripted faults, and set credentials. Tests share one bucket, so choose a prefix."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    _s3_server.front.reset()
    yield _s3_server
    _s3_server.front.reset()


@pytest.fixture
def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the repository's root as the working directory. Code is linked, tables are copied."""
    for name in PARTS:
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "tables").mkdir()
    for file in (REPOSITORY / "tables").glob("*.yaml"):
        (tmp_path / "tables" / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return tmp_path


@pytest.fixture
def land(checkout: Path) -> Land:
    """Return a function that lands one file.

    The file has a range of lines of the real access log, followed by the lines in `more`.
    """
    with gzip.open(REPOSITORY / "examples" / "data" / "apache_access.log.gz", "rt", encoding="utf-8") as log:
        real = log.read().splitlines()

    def write(name: str, first: int = 0, last: int = 0, *, more: tuple[str, ...] = ()) -> Path:
        folder = checkout / "landing" / "access_log"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        file.write_text("".join(f"{line}\n" for line in [*real[first:last], *more]), encoding="utf-8")
        return file

    return write

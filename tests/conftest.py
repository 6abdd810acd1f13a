"""What every test sees: Hypothesis without deadlines, no setting of the person who runs the tests, and a checkout.

A checkout is a copy of the repository's root in which a test may land files, make tables and run Dagster.
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

# Below those that systems give to connections: such a one may be given away between its choice and its use.
PORTS = range(20_000, 32_000)

Land = Callable[..., Path]

# On two busy cores a deadline is a coin toss, and so is whether data is generated fast enough. A failing example is
# printed so that it can be replayed. Each run tries the same examples, so that a run is red for a change and not by
# chance; one with more of them (`SCALE`) tries other ones each time.
settings.register_profile(
    "tidemark",
    deadline=None,
    derandomize=scale() <= 1,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tidemark")


def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes `-n auto` starts: one more than cores, for many tests wait for others of their own."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Let the process that reports all tests sum up their times."""
    if not hasattr(config, "workerinput"):
        output = os.environ.get("TIDEMARK_TEST_TIMES")
        config.pluginmanager.register(RunTimes(Path(output) if output else None))


def pytest_report_header() -> str:
    """Name the seed of the matrices, so that the run can be repeated."""
    seed = draws.seed()
    return f"matrices: cases drawn by TIDEMARK_DRAW={seed}" if seed else "matrices: all cases"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark:
    """Give whole files to the worker processes, and all that use the shared Spark session to one of them."""
    return OneSpark(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not load files of which `-m` chooses no test: to load all of them takes each process half a minute."""
    if collection_path.suffix != ".py":
        return None
    wanted = config.option.markexpr.split(" and ")[0]
    if wanted == "browser":
        return None if "mark.browser" in collection_path.read_text(encoding="utf-8") else True
    return True if wanted == "not extended" and _tier_of(collection_path) == "extended" else None


@cache
def _tier_of(path: Path) -> str | None:
    return tier_of(path.relative_to(REPOSITORY).as_posix(), partial(path.read_text, encoding="utf-8"))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their tier, draw the cases of matrices, and put the longest files first.

    Fail for a test that is not of the tier that its file is known by.
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
    """No test writes into the Dagster instance or the cache of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        patch.delenv("TIDEMARK_CACHE_DIR", raising=False)
        patch.setenv("TIDEMARK_CACHE_MIB", "0")
        patch.setenv("TIDEMARK_SPARK_SERVER", "/nowhere/server.json")
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_java() -> Iterator[None]:
    """Spark starts dozens of times, in this process and in those that tests start, and never works for long."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in quick_java.environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """The one Spark session of this process: jobs that a test runs here join it, whatever master they name."""
    from jobs.spark.spark import Spark  # a second that tests without Spark do not pay

    with Spark("local[2]") as running:
        running.session()
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The one PostgreSQL server of this process. A test that cannot have it fails."""
    from tests.support.postgres import running  # a second that tests without a database do not pay

    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where an empty SQL database is, of each kind that a catalogue may be in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.owned_place()


@pytest.fixture
def history(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """Settings of a Dagster instance that say where its history is; the processes of a test find it there as well.

    In SQLite, or where the test asks for it, or `TIDEMARK_TEST_POSTGRES` is set (`make test-postgres`), in PostgreSQL.
    """
    default = "postgresql" if os.environ.get("TIDEMARK_TEST_POSTGRES") else "sqlite"
    if getattr(request, "param", default) == "sqlite":
        monkeypatch.delenv("TIDEMARK_DAGSTER_POSTGRES", raising=False)
        return {}
    server: Postgres = request.getfixturevalue("postgres")
    monkeypatch.setenv("TIDEMARK_DAGSTER_POSTGRES", server.place())
    return {"storage": {"custom": {"module": "pipelines.postgres_history", "class": "PostgresHistory", "config": {}}}}


@pytest.fixture
def kept_instance(history: Mapping[str, object], tmp_path: Path) -> Iterator[DagsterInstance]:
    """A Dagster instance as users have it, which other threads and schedules open anew: in files, or in PostgreSQL."""
    from dagster import DagsterInstance  # a second that tests without Dagster do not pay

    folder = tmp_path / "history"
    folder.mkdir()
    with DagsterInstance.local_temp(str(folder), {"telemetry": {"enabled": False}, **history}) as opened:
        yield opened


@pytest.fixture
def instance(request: pytest.FixtureRequest, history: Mapping[str, object]) -> Iterator[DagsterInstance]:
    """A Dagster instance of this thread alone, and quick: in memory, or, where `history` says so, in PostgreSQL."""
    from dagster import DagsterInstance

    if history:
        yield request.getfixturevalue("kept_instance")
    else:
        with DagsterInstance.ephemeral() as opened:
            yield opened


@pytest.fixture
def catalog(database_url: str) -> Iterator[Catalog]:
    """A catalogue without a table."""
    from storage_core.catalog.opening import open_catalog  # SQLAlchemy is not what most tests load

    with open_catalog(database_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    from tests.support.s3_server import S3Server  # a second that tests without S3 do not pay

    with S3Server() as server:
        yield server


@pytest.fixture
def s3_server(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 server with nothing scripted, and an environment that lets in. Tests share its bucket: choose a prefix."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    _s3_server.front.reset()
    yield _s3_server
    _s3_server.front.reset()


@pytest.fixture
def free_port() -> int:
    """A port of this machine that nobody listens on."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository's root in a folder of its own, as the working directory: the code by link, the tables copied."""
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
    """Land lines of the real access log, by number, and any other lines, as one file."""
    with gzip.open(REPOSITORY / "examples" / "data" / "apache_access.log.gz", "rt", encoding="utf-8") as log:
        real = log.read().splitlines()

    def write(name: str, first: int = 0, last: int = 0, *, more: tuple[str, ...] = ()) -> Path:
        folder = checkout / "landing" / "access_log"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        file.write_text("".join(f"{line}\n" for line in [*real[first:last], *more]), encoding="utf-8")
        return file

    return write

"""The settings of a Dagster instance whose history is in PostgreSQL. Other tests check running instances."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pipelines.cli import main
from pipelines.instance import SETTINGS, PostgresHistory, database_url, home, open_instance
from pipelines.tables import LOG_LEVEL, POSTGRES
from storage_core.base.errors import InvalidInput

pytestmark = pytest.mark.dagster

SECRET = {POSTGRES: "postgresql://dagster:s3cret@database:5432/dagster"}
PEOPLE = "name: people\nuri: warehouse/people\ncolumns: {id: long!, name: string}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a declared table, and make it the working directory."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "people.yaml").write_text(PEOPLE)
    monkeypatch.chdir(tmp_path)
    for name in ("DAGSTER_HOME", POSTGRES):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_settings_follow_the_environment_and_never_hold_the_url(tmp_path: Path) -> None:
    settings = home(tmp_path, {}) / "dagster.yaml"
    assert settings.readlink() == SETTINGS

    home(tmp_path, SECRET)
    written = settings.stat().st_mtime_ns
    assert "s3cret" not in settings.read_text()
    assert home(tmp_path, SECRET) == tmp_path / ".dagster"
    assert settings.stat().st_mtime_ns == written
    stored = {"storage": {"custom": {"module": "pipelines.instance", "class": "PostgresHistory", "config": {}}}}
    assert yaml.safe_load(settings.read_text()) == yaml.safe_load(SETTINGS.read_text()) | stored
    assert yaml.safe_load(SETTINGS.read_text())["telemetry"] == {"enabled": False}

    elsewhere = home(tmp_path, {**SECRET, "DAGSTER_HOME": str(tmp_path / "elsewhere")})
    assert yaml.safe_load((elsewhere / "dagster.yaml").read_text())["storage"] == stored["storage"]


@pytest.mark.parametrize("named", [False, True], ids=["next to tables", "DAGSTER_HOME"])
def test_a_home_made_for_postgresql_is_refused_without_the_variable_and_stays(tmp_path: Path, *, named: bool) -> None:
    where = {"DAGSTER_HOME": str(tmp_path / ".dagster")} if named else {}
    settings = home(tmp_path, SECRET | where) / "dagster.yaml"
    before = (settings.read_bytes(), settings.stat().st_mtime_ns)
    with pytest.raises(
        InvalidInput, match=rf"{settings.parent} cannot be read: {POSTGRES} is not set.*remove {settings}"
    ):
        home(tmp_path, where)
    with pytest.raises(InvalidInput, match=f"{POSTGRES} is not set"):
        home(tmp_path, {LOG_LEVEL: "DEBUG"} | where)  # as `tidemark ui --verbose` does
    assert (settings.read_bytes(), settings.stat().st_mtime_ns) == before
    assert sorted(each.name for each in settings.parent.iterdir()) == ["dagster.yaml"]
    settings.unlink()
    assert home(tmp_path, {}) == tmp_path / ".dagster"
    assert settings.readlink() == SETTINGS


@pytest.mark.parametrize(
    "command",
    [
        ["backfill", "--table", "people", "--from", "2026-01-01", "--to", "2026-01-02"],
        ["ui"],
        ["serve", "daemon", "--code", "localhost:4266"],
        ["status"],
        ["metrics"],
        ["report"],
    ],
    ids=lambda command: command[0],
)
def test_each_command_refuses_such_a_home_and_writes_nothing(
    command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home(place, SECRET)
    before = contents(place)
    assert main(command) == 2
    said = capfd.readouterr()
    assert f"the history of Dagster in {place / '.dagster'} cannot be read: {POSTGRES} is not set" in said.err
    assert "s3cret" not in said.out + said.err
    assert contents(place) == before
    monkeypatch.setenv("DAGSTER_HOME", str(place / "elsewhere"))
    assert main(["status"]) == 0, "another home is not concerned"


def test_a_database_that_does_not_answer_is_named_without_its_url_or_the_text_of_a_driver(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    del place
    monkeypatch.setenv(POSTGRES, "postgresql://user:s3cret@127.0.0.1:1/x")
    assert main(["backfill", "--table", "people", "--from", "2026-01-01", "--to", "2026-01-02"]) == 5
    said = capfd.readouterr().err
    assert "tidemark: unavailable: the history of Dagster cannot be reached: the database of" in said
    assert not re.search("s3cret|psycopg|sqlalche|Retrying|Traceback", said)


def test_a_move_from_files_to_postgresql_is_announced_once(
    place: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_instance(home(place, {})) as instance:
        assert instance.get_runs_count() == 0
    moved = rf"{POSTGRES} is set, but the history of Dagster in {place / '.dagster'} is in files"
    monkeypatch.setenv(POSTGRES, SECRET[POSTGRES])
    assert main(["status"]) == 0
    assert moved in capfd.readouterr().err
    assert (place / ".dagster" / "dagster.yaml").readlink() == SETTINGS, "status changes nothing"
    caplog.clear()
    for _ in range(2):
        home(place, SECRET)
    (record,) = caplog.records
    assert moved in record.getMessage()
    assert "s3cret" not in record.getMessage()


def test_a_first_home_in_postgresql_is_not_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home(tmp_path, {})  # the home has no run history yet, as in a new container
    home(tmp_path, SECRET)
    assert caplog.records == []


def test_a_file_of_the_users_own_stays_and_must_name_the_database(tmp_path: Path) -> None:
    settings = home(tmp_path, {}) / "dagster.yaml"
    settings.unlink()
    settings.write_text("telemetry: {enabled: false}\n")
    with pytest.raises(InvalidInput, match=rf"{POSTGRES} is set, but .*dagster\.yaml is your own file"):
        home(tmp_path, SECRET)
    own = "storage: {postgres: {postgres_url: {env: ELSEWHERE}}}\n"
    settings.write_text(own)
    home(tmp_path, SECRET)
    assert settings.read_text() == own


@pytest.mark.parametrize("url", ["", "dagster:s3cret@database", "mysql://dagster:s3cret@database/dagster"])
def test_what_is_no_url_of_postgresql_is_refused_without_repeating_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POSTGRES, url)
    with pytest.raises(InvalidInput, match=f"{POSTGRES} is .*Set {POSTGRES} to postgresql://") as refused:
        PostgresHistory.from_config_value(None, {})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_the_driver_is_the_one_that_dagster_writes_for(scheme: str) -> None:
    assert database_url({POSTGRES: f"{scheme}://h/d"}) == "postgresql+psycopg2://h/d"

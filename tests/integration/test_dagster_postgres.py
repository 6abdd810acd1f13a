"""The settings of a Dagster instance whose history is in PostgreSQL. Other tests check its behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipelines.instance import SETTINGS, PostgresHistory, database_url, home
from pipelines.tables import POSTGRES
from storage_core.base.errors import InvalidInput

pytestmark = pytest.mark.dagster

SECRET = {POSTGRES: "postgresql://dagster:s3cret@database:5432/dagster"}


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

    home(tmp_path, {})
    assert settings.readlink() == SETTINGS
    elsewhere = home(tmp_path, {**SECRET, "DAGSTER_HOME": str(tmp_path / "elsewhere")})
    assert yaml.safe_load((elsewhere / "dagster.yaml").read_text())["storage"] == stored["storage"]


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
    with pytest.raises(InvalidInput, match=f"{POSTGRES} is .*Set it to postgresql://") as refused:
        PostgresHistory.from_config_value(None, {})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2"])
def test_the_driver_is_the_one_that_dagster_writes_for(scheme: str) -> None:
    assert database_url({POSTGRES: f"{scheme}://h/d"}) == "postgresql+psycopg2://h/d"

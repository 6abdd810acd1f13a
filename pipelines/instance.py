"""Where Dagster keeps its history: `.dagster/` beside `tables/`, with a link to the settings that come with us.

With `TIDEMARK_DAGSTER_POSTGRES` runs and events are in that database, and the settings a file that says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterInstance

from pipelines.environment import DAGSTER_HOME, LOG_LEVEL, POSTGRES
from pipelines.tables import tables_folder
from storage_core.errors import InvalidInput
from storage_core.extras import POSTGRES as EXTRA
from storage_core.extras import needs

SETTINGS = Path(__file__).resolve().with_name("dagster.yaml")

_OURS = "# Made by Tidemark, again by each of its commands"
_LEVEL = "INFO"
_IN_POSTGRES = """
storage:
  custom:
    module: pipelines.postgres_history
    class: PostgresHistory
    config: {}
"""


def home(root: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the instance's folder, made where it is missing: `DAGSTER_HOME`, else `.dagster/` in the root.

    The root is the folder that holds `tables/`. In `.dagster/` the settings are linked to those of the package, unless
    a file of the user's is there. A database, or a terminal level other than INFO, needs a settings file of its own.
    In `DAGSTER_HOME` only a database does. Idempotent. Raises `InvalidInput` when the folder cannot be made, or when a
    file of the user's says nothing of the database that is set; `Unavailable` without the packages that a database
    needs.
    """
    named, in_postgres = environment.get(DAGSTER_HOME), bool(environment.get(POSTGRES))
    folder = _made(Path(named).resolve() if named else (root or tables_folder().parent).resolve() / ".dagster")
    settings, level = folder / SETTINGS.name, environment.get(LOG_LEVEL)
    if in_postgres:
        _require_postgres(settings, environment)
    if in_postgres or (level and not named):
        _settle(settings, _text(level or _LEVEL, in_postgres=in_postgres))
    elif not named and (_is_ours(settings) or not settings.exists()):
        settings.unlink(missing_ok=True)
        settings.symlink_to(SETTINGS)
    return folder


def _is_ours(settings: Path) -> bool:
    """Whether it is a link that is not the package's, as older versions made it, or a file that we made."""
    if settings.is_symlink():
        return settings.readlink() != SETTINGS
    return settings.is_file() and settings.read_text(encoding="utf-8").startswith(_OURS)


def _text(level: str, *, in_postgres: bool) -> str:
    """The settings of the package, with this level and this place of the history."""
    text = SETTINGS.read_text(encoding="utf-8").replace(f"python_log_level: {_LEVEL}", f"python_log_level: {level}")
    return f"{_OURS}.\n{text}" + (_IN_POSTGRES if in_postgres else "")


def _settle(settings: Path, text: str) -> None:
    """Replace settings that are ours, or that are missing."""
    if not settings.is_symlink() and settings.exists() and not _is_ours(settings):
        return
    if settings.is_symlink() or not settings.exists() or settings.read_text(encoding="utf-8") != text:
        made = settings.with_name(f"{settings.name}.{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(settings)


def _require_postgres(settings: Path, environment: Mapping[str, str]) -> None:
    with needs(EXTRA, f"a history in PostgreSQL ({POSTGRES})"):
        from pipelines.postgres_history import database_url
    database_url(environment)
    is_own = settings.exists() and not settings.is_symlink() and not _is_ours(settings)
    if is_own and "postgres" not in settings.read_text(encoding="utf-8"):
        raise InvalidInput(
            f"{POSTGRES} is set, but {settings} is a file of your own that names no PostgreSQL; remove one of both"
        )


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{folder} cannot hold the history of Dagster ({error}); set {DAGSTER_HOME} to a folder that can be made"
        ) from None
    return folder


@contextmanager
def open_instance(folder: Path | None = None) -> Iterator[DagsterInstance]:
    """Open the instance in this process, for runs that the UI shows afterwards, and close it at the end."""
    with DagsterInstance.from_config(str(folder or home())) as instance:
        yield instance

"""The home folder and the history of Dagster.

The home folder is `.dagster/` next to `tables/`, or the folder in `DAGSTER_HOME`. The environment variable
`TIDEMARK_DAGSTER_POSTGRES` can contain the URL of a PostgreSQL database. Dagster then stores runs and events in this
database. In this case, the settings file selects PostgreSQL as the storage. No file contains the URL, because the URL
may contain a password.

Dagster's storage needs the driver psycopg2. SQLAlchemy 2.1 and later use this driver only if the URL contains the name
of the driver.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from dagster import DagsterInstance
from dagster._config.config_schema import UserConfigSchema
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import DagsterPostgresException
from sqlalchemy.exc import SQLAlchemyError

from pipelines.history import describe_move, require_database
from pipelines.tables import DAGSTER_HOME, LOG_LEVEL, POSTGRES, tables_folder
from storage_core.base.errors import POSTGRES as EXTRA
from storage_core.base.errors import InvalidInput, Unavailable, needs

LOG = logging.getLogger(__name__)

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg2")


class PostgresHistory(DagsterPostgresStorage):
    """The storage of a Dagster instance in PostgreSQL. The URL of the database comes from an environment variable."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """Return an empty configuration, because all settings come from the environment."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Open the database, and create missing tables. Raises `InvalidInput` for an invalid URL."""
        del config_value
        return cls(postgres_url=database_url(os.environ), inst_data=inst_data)


def database_url(environment: Mapping[str, str]) -> str:
    """Return the URL of the database, including the driver.

    Raises `InvalidInput` for an invalid URL. The message does not contain the URL.
    """
    scheme, separator, rest = environment.get(POSTGRES, "").partition("://")
    if scheme not in _SCHEMES or not separator:
        raise InvalidInput(
            f"{POSTGRES} is {'not a URL of PostgreSQL' if environment.get(POSTGRES) else 'not set'}, but this "
            f"instance stores its history there. Set {POSTGRES} to postgresql://USER:PASSWORD@HOST:5432/DATABASE in "
            "every process of Dagster."
        )
    return f"postgresql+psycopg2://{rest}"


SETTINGS = Path(__file__).resolve().with_name("dagster.yaml")

_OURS = "# Made by Tidemark, again by each of its commands"
_LEVEL = "INFO"
_IN_POSTGRES = """
storage:
  custom:
    module: pipelines.instance
    class: PostgresHistory
    config: {}
"""


def home(root: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the instance. Create the folder if it is missing. Idempotent.

    The folder is `DAGSTER_HOME`, or otherwise `.dagster/` in the root. In `.dagster/`, the settings file is a link to
    the settings of the package. If `.dagster/` contains a settings file of the user, the function keeps this file. If
    the history is in a database, the function writes a settings file instead of the link. The function also writes a
    settings file for a terminal log level other than INFO. In `DAGSTER_HOME`, the function writes a settings file only
    for a database. If the history moves from files to a database, this function logs a warning. The function never
    moves a history from a database to files. Otherwise, a process without the variable would change the settings of all
    other processes.

    Args:
        root: The folder that contains `tables/`.
        environment: The environment variables.

    Raises:
        InvalidInput: The folder cannot be created, or the user's settings file does not use the database in the
            environment variable. Or the history of the folder is in a database, and the variable is not set. Nothing
            is written then.
        Unavailable: The packages for the database are not installed.
    """
    named, in_postgres = environment.get(DAGSTER_HOME), bool(environment.get(POSTGRES))
    folder = Path(named).resolve() if named else (root or tables_folder().parent).resolve() / ".dagster"
    settings, level = folder / SETTINGS.name, environment.get(LOG_LEVEL)
    require_database(folder, environment)
    _make(folder)
    if in_postgres:
        _require_postgres(settings, environment)
        if note := describe_move(folder, environment):
            LOG.warning("%s", note)
    if in_postgres or (level and not named):
        _settle(settings, _text(level or _LEVEL, in_postgres=in_postgres))
    elif not named and (_is_ours(settings) or not settings.exists()):
        settings.unlink(missing_ok=True)
        settings.symlink_to(SETTINGS)
    return folder


def _is_ours(settings: Path) -> bool:
    """Return whether Tidemark created the settings.

    Tidemark creates the settings as a file. An older version of the package created a link.
    """
    if settings.is_symlink():
        return settings.readlink() != SETTINGS
    return settings.is_file() and settings.read_text(encoding="utf-8").startswith(_OURS)


def _text(level: str, *, in_postgres: bool) -> str:
    """Return the package's settings, with the given log level and optionally a history in PostgreSQL."""
    text = SETTINGS.read_text(encoding="utf-8").replace(f"python_log_level: {_LEVEL}", f"python_log_level: {level}")
    return f"{_OURS}.\n{text}" + (_IN_POSTGRES if in_postgres else "")


def _settle(settings: Path, text: str) -> None:
    """Write the settings file if it does not exist, or if Tidemark created it."""
    if not settings.is_symlink() and settings.exists() and not _is_ours(settings):
        return
    if settings.is_symlink() or not settings.exists() or settings.read_text(encoding="utf-8") != text:
        made = settings.with_name(f"{settings.name}.{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(settings)


def _require_postgres(settings: Path, environment: Mapping[str, str]) -> None:
    with needs(EXTRA, f"a history in PostgreSQL ({POSTGRES})"):
        pass
    database_url(environment)
    is_own = settings.exists() and not settings.is_symlink() and not _is_ours(settings)
    if is_own and "postgres" not in settings.read_text(encoding="utf-8"):
        raise InvalidInput(
            f"{POSTGRES} is set, but {settings} is your own file and does not use PostgreSQL. Remove one of the two."
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{folder} cannot contain the history of Dagster ({error.strerror}). Set {DAGSTER_HOME} to a folder that "
            "can be created."
        ) from None


@contextmanager
def open_instance(folder: Path | None = None) -> Iterator[DagsterInstance]:
    """Open the instance in this process, and close it after the block. The UI shows the runs of this instance.

    Raises `Unavailable` if the database of the history does not answer at the start or inside the block.
    """
    place = folder or home()
    root = logging.getLogger()
    root.addFilter(_is_not_a_retry)
    try:
        with DagsterInstance.from_config(str(place)) as instance:
            yield instance
    except (SQLAlchemyError, DagsterPostgresException) as error:
        raise _unreachable(place) from error
    finally:
        root.removeFilter(_is_not_a_retry)


def _is_not_a_retry(record: logging.LogRecord) -> bool:
    """Return False for Dagster's warnings about failed connections, because they contain text of the driver."""
    return not str(record.msg).startswith("Retrying failed database connection")


def _unreachable(folder: Path) -> Unavailable:
    if os.environ.get(POSTGRES):
        return Unavailable(
            f"the history of Dagster cannot be reached: the database of {POSTGRES} does not answer, or refuses this "
            "user. Check that the database runs, and check the host, port, user and password in "
            "the variable. Then try again"
        )
    return Unavailable(
        f"the history of Dagster in {folder} cannot be read or written. Check the permissions of the folder and the "
        "free space of its disk. If its files are damaged, move the folder away: a new history begins without old runs"
    )

"""The location of Dagster's history: a folder that contains files, or a settings file that selects a database.

This module does not import Dagster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.tables import DAGSTER_HOME, POSTGRES
from storage_core.base.errors import InvalidInput

_IN_POSTGRES = re.compile(r"^[^#\n]*\bPostgresHistory\b", re.MULTILINE)


def history_folder(root: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of Dagster's history for the declarations in `root`, or None if there is no folder yet."""
    folder = Path(environment.get(DAGSTER_HOME) or root / ".dagster")
    return folder if (folder / "dagster.yaml").exists() else None


def is_in_postgres(settings: Path) -> bool:
    """Return whether this settings file of Dagster uses the database in `TIDEMARK_DAGSTER_POSTGRES`."""
    return settings.is_file() and bool(_IN_POSTGRES.search(settings.read_text(encoding="utf-8")))


def require_database(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `InvalidInput` if the history is in PostgreSQL but the environment contains no database."""
    settings = folder / "dagster.yaml"
    if not environment.get(POSTGRES) and is_in_postgres(settings):
        raise InvalidInput(
            f"the history of Dagster in {folder} cannot be read: {POSTGRES} is not set. Set "
            f"{POSTGRES} to postgresql://USER:PASSWORD@HOST:5432/DATABASE, as in the processes of "
            "Dagster. To keep the history in "
            f"files instead, stop these processes and remove {settings}."
        )


def describe_move(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a warning if the folder has a history in files although the environment contains a database.

    Otherwise, None.
    """
    settings = folder / "dagster.yaml"
    if not environment.get(POSTGRES) or not (folder / "history").is_dir():
        return None
    if settings.is_file() and "postgres" in settings.read_text(encoding="utf-8").lower():
        return None
    return (
        f"{POSTGRES} is set, but the history of Dagster in {folder} is in files. The processes of Dagster use the "
        "database from their next start. Earlier runs, and the state of schedules and sensors, "
        "are not moved to the database."
    )

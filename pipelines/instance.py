"""Where Dagster keeps its history for this repository: `.dagster/`, with a link to the repository's `dagster.yaml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterInstance

from pipelines.tables import tables_folder
from storage_core.errors import InvalidInput

DAGSTER_HOME = "DAGSTER_HOME"
_SETTINGS = "dagster.yaml"


def home(root: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the instance's folder, made where it is missing: `DAGSTER_HOME`, else `.dagster/` in the root.

    The root is the folder that holds `tables/`. The settings are linked, not copied, so that an edit of `dagster.yaml`
    is in force at once. Idempotent. Raises `InvalidInput` when the folder cannot be made.
    """
    if named := environment.get(DAGSTER_HOME):
        return _made(Path(named).resolve())
    base = (root or tables_folder().parent).resolve()
    folder = _made(base / ".dagster")
    link = folder / _SETTINGS
    if not link.exists() and (base / _SETTINGS).is_file():
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / _SETTINGS)
    return folder


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

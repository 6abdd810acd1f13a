"""Where Dagster keeps its history: `.dagster/` beside `tables/`, with a link to the settings that come with us."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterInstance

from pipelines.tables import tables_folder
from storage_core.errors import InvalidInput

DAGSTER_HOME = "DAGSTER_HOME"
SETTINGS = Path(__file__).resolve().with_name("dagster.yaml")
WORKSPACE = SETTINGS.with_name("workspace.yaml")


def home(root: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the instance's folder, made where it is missing: `DAGSTER_HOME`, else `.dagster/` in the root.

    The root is the folder that holds `tables/`. In `.dagster/` the settings are linked to those of the package, unless
    a file of the user's is there. Idempotent. Raises `InvalidInput` when the folder cannot be made.
    """
    if named := environment.get(DAGSTER_HOME):
        return _made(Path(named).resolve())
    folder = _made((root or tables_folder().parent).resolve() / ".dagster")
    link = folder / SETTINGS.name
    if not link.exists() or (link.is_symlink() and link.readlink() != SETTINGS):
        link.unlink(missing_ok=True)
        link.symlink_to(SETTINGS)
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

"""The definitions in `defs`, which `dagster dev -m examples.downstream.definitions` loads."""

from __future__ import annotations

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """Return the definitions of the project."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)

"""Tidemark in a Dagster project: assets that are tables, and components that declare them.

    from tidemark.dagster import TidemarkIOManager

    defs = dg.Definitions(assets=[daily_errors], resources={"io_manager": TidemarkIOManager(root="warehouse")})

A name is loaded when it is first used: the components alone need the packages of the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.components import RawLogComponent, TableComponent, component_definitions
    from tidemark.io_manager.manager import TidemarkIOManager

_HOMES = {
    "RawLogComponent": "pipelines.components",
    "TableComponent": "pipelines.components",
    "TidemarkIOManager": "tidemark.io_manager.manager",
    "component_definitions": "pipelines.components",
}

__all__ = ["RawLogComponent", "TableComponent", "TidemarkIOManager", "component_definitions"]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use.

    Raises `Unavailable` without Dagster, and `InvalidInput` for a component where a module of the project hides ours.
    """
    import importlib  # only when a public name is asked for

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from storage_core.errors import InvalidInput
    from storage_core.extras import PIPELINE, needs

    if _is_of_the_pipeline(name) and (hiding := _hiding()):
        raise InvalidInput(
            f"this project has a module {hiding} of its own, which hides Tidemark's: keep the project's modules in a "
            "package, as dg does; TidemarkIOManager works without"
        )
    with needs(PIPELINE, f"tidemark.dagster.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names that can be loaded, also those that are not yet: `dg` finds the components by it."""
    return sorted(name for name in __all__ if not _is_of_the_pipeline(name) or _hiding() is None)


def _is_of_the_pipeline(name: str) -> bool:
    return _HOMES[name].startswith("pipelines.")


def _hiding() -> str | None:
    """The name and place of a module that Python finds instead of one of the packages which make the assets."""
    from importlib.util import find_spec
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    for name in ("assets", "jobs", "pipelines"):
        spec = find_spec(name)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), str(spec.origin)]
        if places and not any(Path(each).resolve().is_relative_to(root / name) for each in places):
            return f"{name!r} ({places[-1]})"
    return None

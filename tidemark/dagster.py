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
    """Load a public name from its home on first use. Raises `Unavailable` without Dagster."""
    import importlib  # only when a public name is asked for

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from storage_core.extras import PIPELINE, needs

    if _HOMES[name].startswith("pipelines."):
        _require_ours()
    with needs(PIPELINE, f"tidemark.dagster.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def _require_ours() -> None:
    """Return where the packages that make the assets are ours. Raises `InvalidInput` where others have their names."""
    from importlib.util import find_spec
    from pathlib import Path

    from storage_core.errors import InvalidInput

    root = Path(__file__).resolve().parents[1]
    for name in ("assets", "jobs", "pipelines"):
        spec = find_spec(name)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), str(spec.origin)]
        if not any(Path(each).is_relative_to(root / name) for each in places):
            raise InvalidInput(
                f"this project has a module {name!r} of its own ({''.join(places[-1:])}), which hides Tidemark's: keep "
                "the project's modules in a package, as dg does; TidemarkIOManager works without"
            )


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet: `dg` finds the components by it."""
    return sorted(__all__)

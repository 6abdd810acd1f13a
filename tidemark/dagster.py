"""Tidemark in a Dagster project: an IO manager for assets that are tables, and components that declare tables.

    from tidemark.dagster import TidemarkIOManager

    defs = dg.Definitions(assets=[daily_errors], resources={"io_manager": TidemarkIOManager(root="warehouse")})

Python loads a name when it is first used. Only the components need the packages of the extra `pipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assets.io_manager.manager import TidemarkIOManager
    from pipelines.components import RawLogComponent, TableComponent, component_definitions

_HOMES = {
    "RawLogComponent": "pipelines.components",
    "TableComponent": "pipelines.components",
    "TidemarkIOManager": "assets.io_manager.manager",
    "component_definitions": "pipelines.components",
}

__all__ = ["RawLogComponent", "TableComponent", "TidemarkIOManager", "component_definitions"]


def __getattr__(name: str) -> object:
    """Load a public name from its module when it is first used.

    Raises:
        Unavailable: Dagster is not installed.
        InvalidInput: The name belongs to a component, and a project module hides one of Tidemark's packages.
    """
    import importlib  # only when a public name is first used

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from storage_core.base.errors import PIPELINE, InvalidInput, needs

    home, hiding = _HOMES[name], _hiding()
    if hiding and _is_of_the_pipeline(name):
        raise InvalidInput(
            f"this project has a module {hiding} of its own, which hides Tidemark's. Keep the project's modules in a "
            "package, as dg does. TidemarkIOManager does not need this."
        )
    with needs(PIPELINE, f"tidemark.dagster.{name}"):
        if hiding:
            home = home.replace("assets", _apart("assets"), 1)
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """Return the public names that can be loaded, including names that are not loaded yet.

    `dg` uses this list to find the components.
    """
    return sorted(name for name in __all__ if not _is_of_the_pipeline(name) or _hiding() is None)


def _is_of_the_pipeline(name: str) -> bool:
    return _HOMES[name].startswith("pipelines.")


def _apart(package: str) -> str:
    """Load one of Tidemark's packages under a name that no project module has. Return this name."""
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    name, folder = f"_tidemark_{package}", Path(__file__).resolve().parents[1] / package
    if name not in sys.modules:
        spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is not a package")
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return name


def _hiding() -> str | None:
    """Return the name and location of a project module that hides a package of Tidemark.

    Return None if no project module hides a package.
    """
    from importlib.util import find_spec
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    for name in ("assets", "jobs", "pipelines"):
        spec = find_spec(name)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), str(spec.origin)]
        if places and not any(Path(each).resolve().is_relative_to(root / name) for each in places):
            return f"{name!r} ({places[-1]})"
    return None

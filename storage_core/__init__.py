"""Tidemark's storage core: searchable tables on plain object storage.

The public names are loaded when they are first used, so that importing a part (`storage_core.errors`) or asking the
command for help costs no Arrow, DuckDB or tantivy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.errors import TidemarkError
    from storage_core.raw_log.raw_log import RawLog
    from storage_core.raw_log.stores import RawStore
    from storage_core.read.predicate import col
    from storage_core.region.options import WriterOptions
    from storage_core.settings.index import IndexDefinition
    from storage_core.settings.query import QueryLimits
    from storage_core.table import Table

_HOMES = {
    "IndexDefinition": "storage_core.settings.index",
    "QueryLimits": "storage_core.settings.query",
    "RawLog": "storage_core.raw_log.raw_log",
    "RawStore": "storage_core.raw_log.stores",
    "Table": "storage_core.table",
    "TidemarkError": "storage_core.errors",
    "WriterOptions": "storage_core.region.options",
    "col": "storage_core.read.predicate",
}

__all__ = ["IndexDefinition", "QueryLimits", "RawLog", "RawStore", "Table", "TidemarkError", "WriterOptions", "col"]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    import importlib  # only when a public name is asked for

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Tidemark: searchable tables on plain object storage.

    import tidemark as tm

    logs = tm.Table.open("warehouse/access_log")
    logs.scan(["path"], filter=tm.col("status") >= 500).to_arrow()

Every public name of the library is here; `tm.errors` holds the errors. A name is loaded when it is first used, so that
this import alone loads no Arrow, DuckDB or tantivy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core import errors
    from storage_core.append import Appended
    from storage_core.catalog.opening import open_catalog
    from storage_core.cloning.cloned import Cloned
    from storage_core.dml.assignments import Expression, expr
    from storage_core.dml.changed import Changed
    from storage_core.forget.raw_table import RawTable
    from storage_core.forget.report import ForgetReport, Forgotten, Held
    from storage_core.importing.imported import Imported
    from storage_core.log.history import HistoryEntry
    from storage_core.publishing.mirrored import Mirrored
    from storage_core.raw_log.raw_log import RawLog
    from storage_core.raw_log.stores import RawStore
    from storage_core.read.history_pages import HistoryPage
    from storage_core.read.plan import Plan
    from storage_core.read.predicate import Filter, col
    from storage_core.read.scan import Scan
    from storage_core.read.sql_result import SqlResult
    from storage_core.read.view import Consistency
    from storage_core.region.options import WriterOptions
    from storage_core.settings.index import IndexDefinition
    from storage_core.settings.late_data import LateData
    from storage_core.settings.query import QueryLimits
    from storage_core.table import Table

_HOMES = {
    "Appended": "storage_core.append",
    "Changed": "storage_core.dml.changed",
    "Cloned": "storage_core.cloning.cloned",
    "Consistency": "storage_core.read.view",
    "Expression": "storage_core.dml.assignments",
    "Filter": "storage_core.read.predicate",
    "ForgetReport": "storage_core.forget.report",
    "Forgotten": "storage_core.forget.report",
    "Held": "storage_core.forget.report",
    "HistoryEntry": "storage_core.log.history",
    "HistoryPage": "storage_core.read.history_pages",
    "Imported": "storage_core.importing.imported",
    "IndexDefinition": "storage_core.settings.index",
    "LateData": "storage_core.settings.late_data",
    "Mirrored": "storage_core.publishing.mirrored",
    "Plan": "storage_core.read.plan",
    "QueryLimits": "storage_core.settings.query",
    "RawLog": "storage_core.raw_log.raw_log",
    "RawStore": "storage_core.raw_log.stores",
    "RawTable": "storage_core.forget.raw_table",
    "Scan": "storage_core.read.scan",
    "SqlResult": "storage_core.read.sql_result",
    "Table": "storage_core.table",
    "WriterOptions": "storage_core.region.options",
    "col": "storage_core.read.predicate",
    "errors": "storage_core.errors",
    "expr": "storage_core.dml.assignments",
    "open_catalog": "storage_core.catalog.opening",
}

__all__ = [
    "Appended",
    "Changed",
    "Cloned",
    "Consistency",
    "Expression",
    "Filter",
    "ForgetReport",
    "Forgotten",
    "Held",
    "HistoryEntry",
    "HistoryPage",
    "Imported",
    "IndexDefinition",
    "LateData",
    "Mirrored",
    "Plan",
    "QueryLimits",
    "RawLog",
    "RawStore",
    "RawTable",
    "Scan",
    "SqlResult",
    "Table",
    "WriterOptions",
    "col",
    "errors",
    "expr",
    "open_catalog",
]


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use."""
    import importlib  # only when a public name is asked for

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module(_HOMES[name])
    from storage_core.system_errors import typed

    with typed("this process"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, also those that are not loaded yet."""
    return sorted(__all__)

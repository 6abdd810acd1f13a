"""Tidemark: searchable tables on object storage.

    import tidemark as tm

    logs = tm.Table.open("warehouse/access_log")
    logs.scan(["path"], filter=tm.col("status") >= 500).to_arrow()

This module contains all public names of the library. `tm.errors` contains the error classes. Python loads a public name
when it is first used. `import tidemark` alone therefore does not load Arrow, DuckDB or tantivy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_core.base import errors
    from storage_core.base.limits import QueryLimits
    from storage_core.catalog.opening import open_catalog
    from storage_core.change.statement import Changed, Expression, expr
    from storage_core.data.settings.index import IndexDefinition
    from storage_core.data.settings.table import LateData
    from storage_core.interop.import_given import Imported
    from storage_core.interop.publishing import Mirrored
    from storage_core.log.sharing import Cloned
    from storage_core.log.versions import HistoryEntry
    from storage_core.maintain.forget_report import ForgetReport, Forgotten, Held, RawTable
    from storage_core.read.answers import SqlResult
    from storage_core.read.history import HistoryPage
    from storage_core.read.plan import Plan
    from storage_core.read.predicate import Filter, col
    from storage_core.read.scan import Scan
    from storage_core.read.view import Consistency
    from storage_core.table import Table
    from storage_core.write.append import Appended
    from storage_core.write.raw_log.history import RawStore
    from storage_core.write.raw_log.writer import RawLog
    from storage_core.write.region.records import WriterOptions

_HOMES = {
    "Appended": "storage_core.write.append",
    "Changed": "storage_core.change.statement",
    "Cloned": "storage_core.log.sharing",
    "Consistency": "storage_core.read.view",
    "Expression": "storage_core.change.statement",
    "Filter": "storage_core.read.predicate",
    "ForgetReport": "storage_core.maintain.forget_report",
    "Forgotten": "storage_core.maintain.forget_report",
    "Held": "storage_core.maintain.forget_report",
    "HistoryEntry": "storage_core.log.versions",
    "HistoryPage": "storage_core.read.history",
    "Imported": "storage_core.interop.import_given",
    "IndexDefinition": "storage_core.data.settings.index",
    "LateData": "storage_core.data.settings.table",
    "Mirrored": "storage_core.interop.publishing",
    "Plan": "storage_core.read.plan",
    "QueryLimits": "storage_core.base.limits",
    "RawLog": "storage_core.write.raw_log.writer",
    "RawStore": "storage_core.write.raw_log.history",
    "RawTable": "storage_core.maintain.forget_report",
    "Scan": "storage_core.read.scan",
    "SqlResult": "storage_core.read.answers",
    "Table": "storage_core.table",
    "WriterOptions": "storage_core.write.region.records",
    "col": "storage_core.read.predicate",
    "errors": "storage_core.base.errors",
    "expr": "storage_core.change.statement",
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
    """Load a public name from its module when it is first used."""
    import importlib  # only when a public name is first used

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module(_HOMES[name])
    from storage_core.base.errors import typed

    with typed("this process"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return all public names, including names that are not loaded yet."""
    return sorted(__all__)

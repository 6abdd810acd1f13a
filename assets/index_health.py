"""How an index is, in numbers that Dagster plots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dagster import MetadataValue

from storage_core.index.debt import IndexDebt

INDEX_METADATA = frozenset(f"index_{name}" for name in IndexDebt.__dataclass_fields__)
"""What a materialization of an index shows beside the report of its job; of vectors all of it."""


def index_metadata(found: IndexDebt) -> Mapping[str, MetadataValue[Any]]:
    """Return what an index owes as numbers, those that its kind has."""
    numbers = {f"index_{name}": value for name, value in asdict(found).items()}
    return {
        name: MetadataValue.float(value) if isinstance(value, float) else MetadataValue.int(value)
        for name, value in numbers.items()
        if value is not None
    }

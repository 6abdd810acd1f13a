"""The columns that reads of changes add to those of the table; no column of a table may be called so."""

from __future__ import annotations

from typing import Final

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"

CHANGE_COLUMNS: Final = frozenset({CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP})

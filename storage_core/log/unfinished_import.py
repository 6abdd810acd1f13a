"""The mark of a table that an import made, until the import has committed all rows (docs/spec.md, section 2.4)."""

from __future__ import annotations

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.log.snapshot import Snapshot

UNFINISHED_IMPORT = "tidemark.unfinishedImport"
"""The setting that the first version has, and the commit of the import removes. Its text is what is imported."""


def require_imported(uri: str, head: Snapshot) -> None:
    """Raise `InvalidInput` if the import that made the table has not ended in its newest version."""
    source = head.metadata.configuration.get(UNFINISHED_IMPORT)
    if source is not None:
        raise InvalidInput(
            f"{uri}: the table is an unfinished import of {quoted(source)}. Run the import again. If it was refused, "
            "delete the table's folder and import what was corrected.",
            uri=uri,
        )

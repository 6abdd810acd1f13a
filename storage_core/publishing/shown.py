"""Which versions the mirrors of a table show now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from storage_core.log.published import newest_commit
from storage_core.log.published_iceberg import newest_metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.settings.publish import Publish, PublishFormat


def shown_versions(store: ObjectStore, how: Publish) -> Mapping[PublishFormat, int | None]:
    """Return the version that each declared format shows, of Delta where none is declared; None for none yet.

    The requests of `newest_commit` and `newest_metadata`. Raises `Corrupt`.
    """
    return {each: _shown(store, each) for each in how.published}


def _shown(store: ObjectStore, format_: PublishFormat) -> int | None:
    match format_:
        case "delta":
            commit = newest_commit(store)
            shown = None if commit is None else commit.commit.shown
            return None if shown is None else shown.version
        case "iceberg":
            metadata = newest_metadata(store)
            return None if metadata is None else metadata.metadata.shown.version
        case _:
            assert_never(format_)

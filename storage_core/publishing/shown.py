"""What other formats show of a table: more of it by publishing, and which versions now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from storage_core.errors import InvalidInput
from storage_core.extras import ICEBERG, needs
from storage_core.foreign_text import quoted
from storage_core.log.log import TransactionLog
from storage_core.log.published_delta import newest_commit
from storage_core.log.published_iceberg import newest_metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.publishing.mirrored import Mirrored
from storage_core.settings.publish import FORMATS, Publish, PublishFormat


def format_of(name: str) -> PublishFormat:
    """Return the format of this name. Raises `InvalidInput`."""
    for each in FORMATS:
        if each == name:
            return each
    raise InvalidInput(f"a table is published as {', '.join(FORMATS)}, found {quoted(name)}", format=name)


def publish_as(log: TransactionLog, format_: PublishFormat, how: Publish) -> Mirrored:
    """Show the versions of a table in a format. Raises `Unavailable` without the packages that it needs."""
    match format_:
        case "delta":
            from storage_core.publishing.delta import publish_delta

            return publish_delta(log, shows_vectors=how.delta != "none")
        case "iceberg":
            with needs(ICEBERG, "publishing as Iceberg"):
                from storage_core.publishing.iceberg import publish_iceberg
            return publish_iceberg(log)
        case _:
            assert_never(format_)


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

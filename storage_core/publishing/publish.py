"""Publication in a format by its name."""

from __future__ import annotations

from typing import assert_never

from storage_core.errors import InvalidInput
from storage_core.extras import ICEBERG, needs
from storage_core.foreign_text import quoted
from storage_core.log.log import TransactionLog
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

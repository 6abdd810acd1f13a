"""A table whose objects are in a folder and are read as those of a store over a network are: by requests."""

from __future__ import annotations

import os
from pathlib import Path

from storage_core.cache.pieces import cached_pieces
from storage_core.clock import SystemClock
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.objectstore.local import LocalStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.settings.cache import CacheSettings
from tidemark import Table


class Elsewhere(LocalStore):
    """A local store that has no local files, so its objects are cached."""

    @property
    def uri(self) -> str:
        """As of a bucket."""
        return super().uri.replace("file://", "s3://elsewhere")

    def local_path(self, key: str) -> None:
        """Return None."""


def open_elsewhere(folder: Path) -> Table:
    """Return the table in this folder, whose splits are fetched; the cache is that of the environment."""
    store = MeteredStore(Elsewhere(folder))
    cached = cached_pieces(CacheSettings.of(os.environ))
    log = TransactionLog(store, clock=SystemClock(), ids=SystemIds(), cached=cached)
    return Table(store, log, log.snapshot())

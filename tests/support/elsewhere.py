"""A table in a local folder whose objects are read by requests, like a table in a remote store."""

from __future__ import annotations

import os
from pathlib import Path

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.limits import CacheSettings
from storage_core.log.log import TransactionLog
from storage_core.store.local import LocalStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import cached_pieces
from tidemark import Table


class Elsewhere(LocalStore):
    """A local store without local paths, so that its objects are cached."""

    @property
    def uri(self) -> str:
        """Return a URI like the URI of a bucket."""
        return super().uri.replace("file://", "s3://elsewhere")

    def local_path(self, key: str) -> None:
        """Return None."""


def open_elsewhere(folder: Path) -> Table:
    """Open the table in this folder so that its splits are fetched by requests. The environment selects the cache."""
    store = MeteredStore(Elsewhere(folder))
    cached = cached_pieces(CacheSettings.of(os.environ))
    log = TransactionLog(store, clock=SystemClock(), ids=SystemIds(), cached=cached)
    return Table(store, log, log.snapshot())

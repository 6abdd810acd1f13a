"""Put each landed file in its own batch, so that a window with rows of several files gets several splits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def one_file_per_batch() -> Iterator[None]:
    """Divide the work of an ingest, which is planned in this process, into one batch per file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (1, 1))
        yield

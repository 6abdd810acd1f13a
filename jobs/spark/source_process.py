"""The Python processes of Spark in which the data source is planned and read."""

from __future__ import annotations

import gc
import sys
from functools import cache

_DAEMON = "pyspark.daemon"


def spare_collections() -> None:
    """Let the collections of garbage that Spark makes after each task pass over what has been imported so far.

    Its daemon has every worker look at all objects behind each task, which of the modules of a table alone takes as
    long as reading a few hundred thousand rows. Modules stay anyway. In any other process nothing changes.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:  # noqa: ARG001  # again once there are more
    gc.freeze()

"""Where Spark is: in this process, on a cluster, or behind a Spark Connect server (decision 0076)."""

from __future__ import annotations

import os

from storage_core.errors import InvalidInput

LOCAL_SPARK = "local[*]"
"""The Spark of this process, with a task per core: what runs jobs unless something else is named."""

CONNECT = "sc://"
"""How the address of a Spark Connect server starts."""


def resolved(master: str) -> str:
    """Return the master, or the Connect server that `SPARK_REMOTE` names where the master is the default.

    Raises `InvalidInput` when both are named, as PySpark does, and for a `SPARK_REMOTE` that is no Connect server.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if not remote or master.startswith(CONNECT):
        return master
    if not remote.startswith(CONNECT):
        raise InvalidInput(f"SPARK_REMOTE={remote} is no Spark Connect server: name one as {CONNECT}host:port")
    if master != LOCAL_SPARK:
        raise InvalidInput(f"both the master {master} and SPARK_REMOTE={remote} are named: leave one of them out")
    return remote

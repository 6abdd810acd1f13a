"""A typed error of Tidemark as Dagster shows it: kind and message in the event log, retried where that may help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster import Failure

from storage_core.errors import TidemarkError

# What the same step may do better later; any other kind fails the same way until somebody acts.
_WORTH_A_RETRY = frozenset({"conflict", "held", "unavailable", "outcome_unknown", "snapshot_expired"})


def shown(kind: str, message: str) -> dict[str, Any]:
    """Return what a `Failure` takes for an error of this kind.

    Whether it allows retries counts for assets of users with a `RetryPolicy`. Ours have none, for by one Dagster would
    also try a step again that somebody interrupts (decision 0162).
    """
    return {
        "description": f"{kind}: {message}",
        "metadata": {"kind": kind, "message": message},
        "allow_retries": kind in _WORTH_A_RETRY,
    }


@contextmanager
def typed_failures() -> Iterator[None]:
    """Turn a `TidemarkError` of the block into the `Failure` that shows its kind and message in the event log."""
    try:
        yield
    except TidemarkError as error:
        raise Failure(**shown(error.kind, str(error))) from error

"""Identifiers and jitter as a dependency, so that a simulation with a seed replays exactly."""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class Ids(Protocol):
    """Fresh identifiers and random numbers."""

    def uuid(self) -> str:
        """Return a fresh version-4 UUID in its 36-character form."""
        ...

    def fraction(self) -> float:
        """Return a random number in [0, 1), for jitter."""
        ...


def random_pause_ms(ids: Ids, failures: int, *, first_ms: int, longest_ms: int) -> float:
    """Return how long to wait after so many failures in a row: at random, less than `first_ms` doubled each time."""
    return ids.fraction() * float(min(first_ms * 2 ** (failures - 1), longest_ms))


class SystemIds:
    """Identifiers from the operating system's randomness."""

    def uuid(self) -> str:
        """Return a fresh version-4 UUID."""
        return str(uuid.uuid4())

    def fraction(self) -> float:
        """Return a random number in [0, 1)."""
        return random.SystemRandom().random()

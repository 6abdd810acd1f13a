"""Repeatable identifiers for tests and simulations."""

from __future__ import annotations

import random
import uuid


class SeededIds:
    """Identifiers that are the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> str:
        """Return the next version-4 UUID of the sequence."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def fraction(self) -> float:
        """Return the next number of the sequence, in [0, 1)."""
        return self._random.random()

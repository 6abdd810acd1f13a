"""Which process this is: writers and leases are of the process that opened them, no copy by fork() (decision 0087)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import count

from storage_core.errors import CopiedProcess


class _Forks:
    """How many forks lie between the first process and this one: a process id alone may be given a second time."""

    # Mutable state at module level: the state of a process is of the process.
    numbers = count(1)
    seen = 0

    @classmethod
    def note(cls) -> None:
        cls.seen = next(cls.numbers)


os.register_at_fork(after_in_child=_Forks.note)


def _identity() -> tuple[int, int]:
    return os.getpid(), _Forks.seen


@dataclass(frozen=True, slots=True)
class HomeProcess:
    """The process in which this was made. Looking whether one is at home takes no lock and no request."""

    identity: tuple[int, int] = field(default_factory=_identity)

    @property
    def is_here(self) -> bool:
        """Whether this process is the one, and not a copy of it."""
        return self.identity == _identity()

    def require(self, what: str, advice: str) -> None:
        """Return in the process that made this. Raises `CopiedProcess` in a copy: `what` is not there to be used."""
        if not self.is_here:
            raise CopiedProcess(
                f"{what} belongs to process {self.identity[0]}, and this is process {os.getpid()}, a copy of it by "
                f"fork(); nothing was done here, {advice}",
                expected=self.identity[0],
                found=os.getpid(),
            )

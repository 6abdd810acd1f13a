"""Where the splits and transactions of a state come from when an object of it cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.log.files.listed import Recover
from storage_core.log.listed_transactions import RecoverTransactions


@dataclass(frozen=True, slots=True)
class Recovery:
    """What gives the same from elsewhere, slower, or raises the error that it is given; None where nothing does."""

    splits: Recover | None = None
    transactions: RecoverTransactions | None = None


NOWHERE = Recovery()

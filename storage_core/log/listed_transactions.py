"""What one checkpointed state says of transactions: objects of columns, each read when somebody looks into it.

What was recorded since the state before comes as a small object of its own; from time to time these are joined with
those among the sorted ones that hold the same stretch (`checkpoints.transactions_layout`). So an object of a later
state hides what an earlier one says of a transaction, and a sorted one says what nobody hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.errors import Corrupt, NotFound
from storage_core.log.actions import Txn
from storage_core.objectstore.prefetch import prefetch

if TYPE_CHECKING:
    from storage_core.formats.avro_progress import ProgressInfo

ANY_KIND = "*"
"""Under this an object has its bounds where its kinds are too many; no kind of ours is named so."""

PARALLEL_READS = 2

Recorded = Mapping[str, Txn | None]
"""Transactions by appId; None stands for one that was pruned."""

RecoverTransactions = Callable[[Exception], Recorded]


def kind_of(app_id: str) -> str:
    """Return what an appId says up to its first colon, which is in no kind; empty without a colon."""
    kind, colon, _ = app_id.partition(":")
    return kind if colon else ""


class TransactionsPart:
    """The transactions of one object, read when first looked at and kept; what `info` says is known without."""

    def __init__(self, info: ProgressInfo, read: Callable[[], Recorded]) -> None:
        """Stand for what `read` gives."""
        self.info = info
        self._read = read
        self._recorded: Recorded | None = None

    @staticmethod
    def of(info: ProgressInfo, recorded: Recorded) -> TransactionsPart:
        """Return a part that is in memory already."""
        part = TransactionsPart(info, lambda: recorded)
        part._recorded = recorded  # its own class
        return part

    @property
    def is_read(self) -> bool:
        """Whether the transactions are in memory."""
        return self._recorded is not None

    @property
    def recorded(self) -> Recorded:
        """What the object says. One GET the first time. Raises `Corrupt`."""
        if self._recorded is None:
            self._recorded = self._read()
        return self._recorded

    def may_hold(self, app_id: str) -> bool:
        """Return False when the appId lies outside of the bounds."""
        kinds = self.info.kinds
        bounds = kinds.get(kind_of(app_id)) or kinds.get(ANY_KIND)
        return bounds is not None and bounds[0] <= app_id <= bounds[1]

    def may_hold_kind(self, kind: str) -> bool:
        """Return False when no transaction of the kind is among them."""
        return kind in self.info.kinds or ANY_KIND in self.info.kinds


@dataclass(frozen=True)
class ListedTransactions:
    """The parts of one state, the later the more they count. Not slotted: they may be replaced once.

    `recover` gives all transactions from elsewhere when a part cannot be read: slower, same answer.
    """

    parts: tuple[TransactionsPart, ...]
    recover: RecoverTransactions | None = None
    _recovered: list[Recorded] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_intact(self) -> bool:
        """Whether every part that was looked at could be read."""
        return not self._recovered

    @property
    def entries(self) -> int:
        """What the parts say together, also what later ones hide."""
        return sum(part.info.num_entries for part in self.parts)

    def find(self, app_id: str) -> Txn | None:
        """Return a transaction, None where it is not recorded. Reads the parts that may hold it."""
        for recorded in reversed(self._read(part for part in self.parts if part.may_hold(app_id))):
            if app_id in recorded:
                return recorded[app_id]
        return None

    def every(self, kind: str | None = None) -> dict[str, Txn]:
        """Return all transactions, or those of one kind. Reads the parts that may hold them, in parallel."""
        found: dict[str, Txn | None] = {}
        for recorded in self._read(part for part in self.parts if kind is None or part.may_hold_kind(kind)):
            found.update(recorded)
        return {
            app_id: txn
            for app_id, txn in found.items()
            if txn is not None and (kind is None or kind_of(app_id) == kind)
        }

    def _read(self, parts: Iterable[TransactionsPart]) -> list[Recorded]:
        if self._recovered:
            return list(self._recovered)
        wanted = list(parts)
        try:
            unread = [part for part in wanted if not part.is_read]
            for _ in prefetch(lambda part: part.recorded, unread, PARALLEL_READS):
                pass
            return [part.recorded for part in wanted]
        except (Corrupt, NotFound) as error:
            if self.recover is None:
                raise
            self._recovered.append(self.recover(error))
            return list(self._recovered)

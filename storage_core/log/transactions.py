"""The transactions of a snapshot: those of its state, read when somebody looks, and what was recorded since.

Exactly-once rests on them, and they are as many as files that landed and writers that ended, so opening a table must
not pay for them (decision 0132). Two snapshots that follow one another share what the state says.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import TYPE_CHECKING

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.log.actions import Txn

if TYPE_CHECKING:
    from storage_core.log.listed_transactions import ListedTransactions, Recorded


_APP = "app:"


def transaction_of(application: object, now_ms: int) -> Txn:
    """Return what records the work of a caller's application: its name, and the number of the work.

    Raises `InvalidInput` for all else.
    """
    match application:
        case (str(name), int(version)) if name and not isinstance(version, bool) and 0 <= version < 2**63:
            return Txn(appId=_APP + name, version=version, lastUpdated=now_ms)
        case _:
            raise InvalidInput(
                f"an application is its name and the number of its work, as in ('nightly', 17); found "
                f"{quoted(application)}"
            )


class Transactions(Mapping[str, int]):
    """The highest recorded version by appId.

    Reading an object of the state may raise `Corrupt` and `Unavailable`, whatever is called. Only who replays the log
    records and prunes, on a copy of its own.
    """

    def __init__(self, listed: ListedTransactions | None = None, recent: Recorded | None = None) -> None:
        """Put `recent` over what the state says; None among them stands for a transaction that was pruned."""
        self.listed = listed
        self._recent: dict[str, Txn | None] = dict(recent or {})
        self._all: dict[str, int] | None = None

    @property
    def recent(self) -> Recorded:
        """What was recorded and pruned since the state, in no request."""
        return self._recent

    @property
    def entries(self) -> int:
        """How many are kept, those that later ones hide included; no request."""
        return len(self._recent) + (0 if self.listed is None else self.listed.entries)

    def copy(self) -> Transactions:
        """Return the same transactions, to go on from."""
        return Transactions(self.listed, self._recent)

    def record(self, txn: Txn) -> None:
        """Take the next transaction of the log; a version never goes back."""
        known = self._recent.get(txn.appId)
        if known is None or txn.version >= known.version:
            self._recent[txn.appId] = txn
            self._all = None

    def prune(self, app_id: str) -> None:
        """Take the next removal of the log."""
        self._recent[app_id] = None
        self._all = None

    def find(self, app_id: str) -> Txn | None:
        """Return a transaction with the time it was recorded at, None where it is not. At most one GET per object."""
        if app_id in self._recent:
            return self._recent[app_id]
        return None if self.listed is None else self.listed.find(app_id)

    def every(self, kind: str | None = None) -> dict[str, Txn]:
        """Return all, or those whose appId says `kind` up to its first colon; of others no object is read."""
        from storage_core.log.listed_transactions import kind_of

        found = {} if self.listed is None else self.listed.every(kind)
        for app_id, txn in self._recent.items():
            if txn is None:
                found.pop(app_id, None)
            elif kind is None or kind_of(app_id) == kind:
                found[app_id] = txn
        return found

    def __getitem__(self, app_id: str) -> int:
        if self._all is not None:
            return self._all[app_id]
        found = self.find(app_id)
        if found is None:
            raise KeyError(app_id)
        return found.version

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions())

    def __len__(self) -> int:
        return len(self._versions())

    def items(self) -> ItemsView[str, int]:
        """Return appIds and versions."""
        return self._versions().items()

    def __eq__(self, other: object) -> bool:
        return self._versions() == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mappings are not hashable

    def _versions(self) -> dict[str, int]:
        if self._all is None:
            self._all = {app_id: txn.version for app_id, txn in self.every().items()}
        return self._all

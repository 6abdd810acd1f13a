"""The transactions of a snapshot, and the other actions that record finished work in a log.

Transactions make work exactly-once. A table has one transaction per landed file and per finished writer. So opening a
table must not read all transactions (decision 0002). `ListedTransactions` contains the transactions of a state. The
transactions are stored as columns in several objects. Each object is read when it is first used. `Transactions`
contains the transactions of a state, and the transactions of the versions after this state. Consecutive snapshots share
the objects of the state.

Each state stores the transactions since the previous state as a small object. From time to time, small objects are
merged into the sorted objects with the same ranges of appIds (`log.checkpoint_writing`). If several objects of a state
contain the same appId, the object that comes later in the list takes precedence.

`Progress` contains everything in the log except settings and splits. `Progress` thus contains transactions, fences,
merged generations, index segments, translations and skips.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from storage_core.base.errors import Corrupt, NotFound
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Translation,
    Txn,
)
from storage_core.store.meter import prefetch

if TYPE_CHECKING:
    from storage_core.data.formats.avro_state import ProgressInfo


class Transactions(Mapping[str, int]):
    """The highest recorded version by appId.

    Any method may read an object of the state and then raise `Corrupt` or `Unavailable`. Only a replay of the log calls
    `record` and `prune`, on its own copy.
    """

    def __init__(self, listed: ListedTransactions | None = None, recent: Recorded | None = None) -> None:
        """Combine the transactions of a state with later changes in `recent`, which take precedence.

        In `recent`, None stands for a pruned transaction.
        """
        self.listed = listed
        self._recent: dict[str, Txn | None] = dict(recent or {})
        self._all: dict[str, int] | None = None

    @property
    def recent(self) -> Recorded:
        """The transactions that were recorded or pruned in the versions after the base state. No request."""
        return self._recent

    @property
    def entries(self) -> int:
        """The number of entries, including the entries that later entries override. No request."""
        return len(self._recent) + (0 if self.listed is None else self.listed.entries)

    def copy(self) -> Transactions:
        """Return a copy, to which more transactions can be applied."""
        return Transactions(self.listed, self._recent)

    def record(self, txn: Txn) -> None:
        """Apply the next transaction of the log. A version never decreases."""
        known = self._recent.get(txn.appId)
        if known is None or txn.version >= known.version:
            self._recent[txn.appId] = txn
            self._all = None

    def prune(self, app_id: str) -> None:
        """Apply the next `RemoveTxn` action of the log."""
        self._recent[app_id] = None
        self._all = None

    def find(self, app_id: str) -> Txn | None:
        """Return a transaction with the time at which it was recorded, or None. At most one GET per object."""
        if app_id in self._recent:
            return self._recent[app_id]
        return None if self.listed is None else self.listed.find(app_id)

    def every(self, kind: str | None = None) -> dict[str, Txn]:
        """Return all transactions, or those of one kind (see `kind_of`). Objects of other kinds are not read."""
        found = {} if self.listed is None else self.listed.every(kind)
        for app_id, txn in self._recent.items():
            if txn is None:
                found.pop(app_id, None)
            elif kind is None or kind_of(app_id) == kind:
                found[app_id] = txn
        return found

    def about(self, subjects: Subjects) -> dict[str, Txn]:
        """Return the transactions about these subjects. Reads only objects that may contain a matching transaction.

        Cost: at most one GET per object, once. Time for the entries of these objects, not for all entries.
        """
        found = {} if self.listed is None else self.listed.about(subjects)
        for app_id, txn in self._recent.items():
            if subjects.has(app_id):
                if txn is None:
                    found.pop(app_id, None)
                else:
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


ANY_KIND = "*"
"""If an object has too many kinds of transactions, it stores one pair of bounds for all appIds under this key. Tidemark
has no kind with this name.
"""

PARALLEL_READS = 2

Recorded = Mapping[str, Txn | None]
"""Transactions by appId. A value of None means that the transaction was pruned."""

RecoverTransactions = Callable[[Exception], Recorded]


def kind_of(app_id: str) -> str:
    """Return the part of an appId before its first colon, or an empty text without a colon."""
    kind, colon, _ = app_id.partition(":")
    return kind if colon else ""


class Subjects:
    """A filter that selects transactions by kind and subject.

    A transaction about a subject has the appId `<kind>:<subject>` or `<kind>:<subject>@…`.
    """

    def __init__(self, kinds: Collection[str], subjects: Collection[str]) -> None:
        self._kinds = frozenset(kinds)
        self._subjects = frozenset(subjects)
        self._ordered = sorted(self._subjects)

    def has(self, app_id: str) -> bool:
        """Return whether the appId of a transaction contains one of the subjects."""
        kind, _, rest = app_id.partition(":")
        return kind in self._kinds and rest.partition("@")[0] in self._subjects

    def may_be_within(self, bounds: Mapping[str, Sequence[str]]) -> bool:
        """Return False if no transaction about these subjects can be within `bounds`.

        `bounds` has bounds of appIds for each kind.
        """
        if ANY_KIND in bounds:
            return True
        return any(self._is_within(*bounds[kind]) for kind in self._kinds if kind in bounds)

    def _is_within(self, least: str, most: str) -> bool:
        low, high = (each.partition(":")[2] for each in (least, most))
        if bisect_left(self._ordered, low) < bisect_right(self._ordered, high):
            return True
        # A subject may sort before `low`, although the rest of its appId (`<subject>@…`) sorts after `low`. The subject
        # can sort before `low`, and an appId of the subject after `low`, only if `low` begins with the subject.
        return any(low[:length] in self._subjects for length in range(len(low)))


class TransactionsPart:
    """The transactions of one object. The object is read when its transactions are first used. `info` is available
    without a read.
    """

    def __init__(self, info: ProgressInfo, read: Callable[[], Recorded]) -> None:
        """Create a part. `read` returns the transactions of the part."""
        self.info = info
        self._read = read
        self._recorded: Recorded | None = None

    @staticmethod
    def of(info: ProgressInfo, recorded: Recorded) -> TransactionsPart:
        """Return a part with transactions that are already in memory."""
        part = TransactionsPart(info, lambda: recorded)
        part._recorded = recorded  # A method of the class may set this private attribute.
        return part

    @property
    def is_read(self) -> bool:
        """Whether the object was read, so that its transactions are in memory."""
        return self._recorded is not None

    @property
    def recorded(self) -> Recorded:
        """The transactions of the object. One GET at first use. Raises `Corrupt`."""
        if self._recorded is None:
            self._recorded = self._read()
        return self._recorded

    def may_hold(self, app_id: str) -> bool:
        """Return False if the appId is outside the bounds of the object."""
        kinds = self.info.kinds
        bounds = kinds.get(kind_of(app_id)) or kinds.get(ANY_KIND)
        return bounds is not None and bounds[0] <= app_id <= bounds[1]

    def may_be_about(self, subjects: Subjects) -> bool:
        """Return False if the object contains no transaction about these subjects."""
        return subjects.may_be_within(self.info.kinds)

    def may_hold_kind(self, kind: str) -> bool:
        """Return False if the object contains no transaction of the kind."""
        return kind in self.info.kinds or ANY_KIND in self.info.kinds


@dataclass(frozen=True)
class ListedTransactions:
    """The parts of one state. If two parts contain the same appId, the later part takes precedence.

    The class has no slots, because the parts may be replaced once.

    Attributes:
        recover: A function that returns all transactions from another source if a part cannot be read. It is slower,
            but gives the same result.
    """

    parts: tuple[TransactionsPart, ...]
    recover: RecoverTransactions | None = None
    _recovered: list[Recorded] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_intact(self) -> bool:
        """Whether every part that was used could be read."""
        return not self._recovered

    @property
    def entries(self) -> int:
        """The total number of entries, including the entries that later parts override."""
        return sum(part.info.num_entries for part in self.parts)

    def find(self, app_id: str) -> Txn | None:
        """Return a transaction, or None if it is not recorded. Reads the parts that may contain the transaction."""
        for recorded in reversed(self._read(part for part in self.parts if part.may_hold(app_id))):
            if app_id in recorded:
                return recorded[app_id]
        return None

    def every(self, kind: str | None = None) -> dict[str, Txn]:
        """Return all transactions, or those of one kind. Reads the needed parts in parallel."""
        found: dict[str, Txn | None] = {}
        for recorded in self._read(part for part in self.parts if kind is None or part.may_hold_kind(kind)):
            found.update(recorded)
        return {
            app_id: txn
            for app_id, txn in found.items()
            if txn is not None and (kind is None or kind_of(app_id) == kind)
        }

    def about(self, subjects: Subjects) -> dict[str, Txn]:
        """Return the transactions about these subjects. Reads parts that may contain these subjects, in parallel."""
        found: dict[str, Txn | None] = {}
        for recorded in self._read(part for part in self.parts if part.may_be_about(subjects)):
            found |= {app_id: txn for app_id, txn in recorded.items() if subjects.has(app_id)}
        return {app_id: txn for app_id, txn in found.items() if txn is not None}

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


@dataclass(slots=True)
class Progress:
    """The progress after the actions applied so far. Replays change it. The fields are those of `Snapshot`."""

    txns: Transactions = field(default_factory=Transactions)
    fences: dict[str, int] = field(default_factory=dict)
    merged_generations: dict[str, int] = field(default_factory=dict)
    segments: dict[str, IndexSegment] = field(default_factory=dict)
    mergeskips: dict[str, MergeSkip] = field(default_factory=dict)
    translations: dict[str, Translation] = field(default_factory=dict)

    def apply(self, action: Action) -> None:
        """Apply the next action of the log. The versions of transactions and fences never decrease."""
        match action:
            case Txn():
                self.txns.record(action)
            case RemoveTxn():
                self.txns.prune(action.appId)
            case Fence():
                self.fences[action.resource] = max(action.token, self.fences.get(action.resource, action.token))
            case MergedGenerations():
                self.merged_generations[action.region] = action.generation
            case IndexSegment():
                self.segments[action.path] = action
            case RemoveIndexSegment():
                self.segments.pop(action.path, None)
            case Translation():
                self.translations[action.path] = action
            case RemoveTranslation():
                self.translations.pop(action.path, None)
            case MergeSkip():
                self.mergeskips[action.path] = action
            case Remove():
                self.mergeskips.pop(action.path, None)
            case CommitInfo() | Protocol() | Metadata() | Add():
                pass
            case _:
                assert_never(action)

    def actions(self) -> Iterator[Action]:
        """Yield, in a fixed order, the actions that record this progress in a log that is empty."""
        yield from (txn for _, txn in sorted(self.txns.every().items()))
        yield from self.besides_txns()

    def besides_txns(self) -> Iterator[Action]:
        """Yield the result of `actions` without the transactions. The transactions are not read."""
        yield from (Fence(resource=name, token=token) for name, token in sorted(self.fences.items()))
        for region, generation in sorted(self.merged_generations.items()):
            yield MergedGenerations(region=region, generation=generation)
        yield from (self.segments[path] for path in sorted(self.segments))
        yield from (self.mergeskips[path] for path in sorted(self.mergeskips))
        yield from (self.translations[path] for path in sorted(self.translations))

    def beyond(self, head: Progress) -> Iterator[Action]:
        """Yield the transactions, fences and merges whose value is higher than the value of the same entry in `head`.

        The order is that of `actions`.

        First, the function yields removals of transactions. These transactions were pruned here, but the head still has
        them.
        """
        pruned = (app for app, txn in sorted(self.txns.recent.items()) if txn is None)
        yield from (RemoveTxn(appId=app) for app in pruned if app in head.txns)
        for action in self.actions():
            match action:
                case Txn(appId=app, version=version) if head.txns.get(app, version - 1) < version:
                    yield action
                case Fence(resource=name, token=token) if head.fences.get(name, token - 1) < token:
                    yield action
                case MergedGenerations(region=region, generation=last) if head.merged_generations.get(region, 0) < last:
                    yield action
                case _:
                    pass

"""What the log says besides settings and splits: how far work has come, index segments, translations, skips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

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
from storage_core.log.transactions import Transactions


@dataclass(slots=True)
class Progress:
    """What was applied so far; mutable, for those who replay. See `Snapshot` for what the fields map."""

    txns: Transactions = field(default_factory=Transactions)
    fences: dict[str, int] = field(default_factory=dict)
    merged_generations: dict[str, int] = field(default_factory=dict)
    segments: dict[str, IndexSegment] = field(default_factory=dict)
    mergeskips: dict[str, MergeSkip] = field(default_factory=dict)
    translations: dict[str, Translation] = field(default_factory=dict)

    def apply(self, action: Action) -> None:
        """Take the next action of the log. Transactions and fences never go back."""
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
        """Yield the actions that lead here from nothing, in a fixed order."""
        yield from (txn for _, txn in sorted(self.txns.every().items()))
        yield from self.besides_txns()

    def besides_txns(self) -> Iterator[Action]:
        """Yield the same actions without the transactions, of which none is looked at."""
        yield from (Fence(resource=name, token=token) for name, token in sorted(self.fences.items()))
        for region, generation in sorted(self.merged_generations.items()):
            yield MergedGenerations(region=region, generation=generation)
        yield from (self.segments[path] for path in sorted(self.segments))
        yield from (self.mergeskips[path] for path in sorted(self.mergeskips))
        yield from (self.translations[path] for path in sorted(self.translations))

    def beyond(self, head: Progress) -> Iterator[Action]:
        """Yield the transactions, fences and merges that are further than the head's, in the order of `actions`.

        First what was pruned since and the head still has.
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

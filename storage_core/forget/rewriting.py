"""The commit that ends the files and segments that hold forgotten rows: the splits written anew without them.

Rows that are live stay as they are. What the rows were in leaves without a translation, so that no segment over it
answers for what takes its place: that is indexed anew by the next catch-up. The commit conflicts as a compaction does
(spec, section 3.4), and is then planned again on the newer version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage_core.compaction.planner import contexts_of
from storage_core.compaction.rewindow import RewindowTask, execute
from storage_core.compaction.scope import scope_of
from storage_core.errors import CommitConflict
from storage_core.forget.metadata import OPERATION, Since
from storage_core.log.actions import Action, Add, IndexSegment, RemoveIndexSegment
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of
from storage_core.split.rewrite import Rewrite

_logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Ending:
    """What a version has that holds rows: splits, and index segments."""

    splits: Sequence[Add]
    segments: Sequence[IndexSegment]


@dataclass(frozen=True, slots=True)
class Ended:
    """What was committed: the version after it, its id, and how many splits left; nothing where `commit_id` is empty."""

    head: Snapshot
    commit_id: str = ""
    splits: int = 0


@dataclass(slots=True, eq=False)
class Rewriting:
    """Commits until a version has nothing left that holds rows. `look` says what a version has of it."""

    log: TransactionLog
    look: Callable[[Snapshot], Ending]
    _written: dict[str, tuple[Add, Rewrite]] = field(default_factory=dict)

    def run(self, head: Snapshot, regions: Iterable[str]) -> Ended:
        """End what `head` or a later version has, and record that it was forgotten there, also where it has nothing.

        Nothing is committed where that is recorded already and nothing is left to end. In memory are the rows of a
        split. Requests: those of `look`, one GET and one PUT or more per split, those of a commit. Raises
        `CommitConflict` when others changed these splits each of 10 times.
        """
        regions = sorted(regions)
        for attempt in range(1, _ATTEMPTS + 1):
            ending, since = self.look(head), Since.of(head)
            if since.version is not None and not ending.splits and not ending.segments:
                return Ended(head)
            try:
                return self._committed(head, ending, since.recorded(head, self.log.clock.now_ms(), regions))
            except CommitConflict:
                if attempt == _ATTEMPTS:
                    raise
                head = self.log.refresh(head)
        raise AssertionError("unreachable")

    def _committed(self, head: Snapshot, ending: Ending, records: Sequence[Action]) -> Ended:
        rewrites = self._rewritten(head, ending.splits)
        actions = [
            *(action for each in rewrites for action in each.actions),
            *(RemoveIndexSegment(index=each.index, path=each.path) for each in ending.segments),
            *records,
        ]
        rows = sum(each.rows_in for each in rewrites)
        metrics = {
            "rows_in": rows,
            "rows_out": rows,
            "splits_in": len(ending.splits),
            "splits_out": sum(len(each.adds) for each in rewrites),
        }
        done = self.log.commit(head, actions, operation=OPERATION, metrics=metrics)
        if done.already_committed:
            raise CommitConflict(f"{self.log.store.uri}: others forgot rows on version {head.version}; plan it again")
        _logger.info("%s of %s: %d splits rewritten", OPERATION, self.log.store.uri, len(ending.splits))
        return Ended(done.snapshot, done.commit_id, len(ending.splits))

    def _rewritten(self, head: Snapshot, splits: Sequence[Add]) -> list[Rewrite]:
        """The splits written anew; one that is as it was in the attempt before is not written again."""
        found: list[Rewrite] = []
        for add, context in zip(splits, _contexts(head, splits), strict=True):
            known = self._written.get(add.path)
            if known is None or known[0] != add:
                task = RewindowTask((add,), context)
                done = execute(self.log.store, task, ids=self.log.ids, now_ms=self.log.clock.now_ms())
                known = self._written[add.path] = add, done
            found.append(known[1])
        return found


def _contexts(head: Snapshot, splits: Sequence[Add]) -> list[SplitContext]:
    """How each is written: sorted and in windows as it is, or where that does not fit the table as new ones are."""
    own = context_of(head)
    scopes = [scope_of(head.table_id, add) for add in splits]
    known = [each for each in dict.fromkeys(scopes) if each is not None]
    contexts = dict(zip(known, contexts_of(head, known), strict=True))
    return [own if each is None else contexts[each] or own for each in scopes]

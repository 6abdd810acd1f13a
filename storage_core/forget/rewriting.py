"""The commit that ends the files and segments that hold forgotten rows: the splits written anew without them.

Rows that are live stay as they are. What the rows were in leaves without a translation, so that no segment over it
answers for what takes its place: that is indexed anew by the next catch-up. The commit conflicts as a compaction does
(spec, section 3.4), and is then planned again on the newer version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from storage_core.compaction.planner import contexts_of
from storage_core.compaction.rewindow import RewindowTask, execute
from storage_core.compaction.scope import scope_of
from storage_core.errors import CommitConflict
from storage_core.forget.metadata import OPERATION, Since, is_forgetting
from storage_core.forget.search import Found
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    MergedGenerations,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
)
from storage_core.log.advance import read_version
from storage_core.log.log import TransactionLog
from storage_core.log.replanned import replanned
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of
from storage_core.split.rewrite import Rewrite

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """What a version has that holds rows: splits, index segments, and paths of translations that name partitions."""

    splits: Sequence[Add]
    segments: Sequence[IndexSegment]
    translations: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """What was committed: the version after it, its id, and how many splits left; `commit_id` is empty for nothing."""

    head: Snapshot
    commit_id: str = ""
    splits: int = 0


@dataclass(slots=True, eq=False)
class Rewriting:
    """Commits until a version has nothing left that holds rows. `look` says what a version has of it."""

    log: TransactionLog
    look: Callable[[Snapshot], Ending]
    _written: dict[str, tuple[Add, Rewrite]] = field(default_factory=dict)

    def run(self, head: Snapshot, found: Found) -> Ended:
        """Rewrite what holds rows at `head` or a later version, and record that, in one commit.

        Also where nothing is to be rewritten, unless it is recorded already and nothing left since that holds rows, or
        that is gone, so that nobody can tell. In memory are the rows of a split. Requests: those of `look`, one GET and
        one PUT or more per split, those of a commit. Raises `CommitConflict` when others changed these splits each of
        10 times.
        """

        def attempt(head: Snapshot) -> Ended:
            ending, since = self.look(head), Since.of(head)
            is_new = self._left_after(since, head, found)
            if not is_new and not ending.splits and not ending.segments and not ending.translations:
                return Ended(head)
            regions = sorted({*found.regions, *since.generations})
            return self._committed(head, ending, since.recorded(head, self.log.clock.now_ms(), regions))

        return replanned(self.log, head, attempt)

    def _left_after(self, since: Since, head: Snapshot, found: Found) -> bool:
        """Whether a later version than that which forgot, which may have been about others, names what may hold rows.

        That is a split with rows or one that is gone, and generations that it merged of a region with rows or one that
        is recorded. One GET per version; one that is gone may have named anything.
        """
        if since.version is None:
            return True
        for version in range(since.version + 1, head.version + 1):
            actions = read_version(self.log.store, version)
            if actions is None or (
                not is_forgetting(actions) and any(_may_be_of(each, since, found) for each in actions)
            ):
                return True
        return False

    def _committed(self, head: Snapshot, ending: Ending, records: Sequence[Action]) -> Ended:
        rewrites = self._rewritten(head, ending.splits)
        actions = [
            *(action for each in rewrites for action in each.actions),
            *(RemoveIndexSegment(index=each.index, path=each.path) for each in ending.segments),
            *(RemoveTranslation(path=path) for path in ending.translations),
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


def _may_be_of(action: Action, since: Since, found: Found) -> bool:
    match action:
        case Add(path=path) | Remove(path=path):
            return path in found.splits or not found.has_split(path)
        case MergedGenerations(region=region):
            return region in found.regions or region in since.generations
        case _:
            return False


def _contexts(head: Snapshot, splits: Sequence[Add]) -> list[SplitContext]:
    """How each is written: sorted and in windows as it is, or where that does not fit the table as new ones are."""
    own = context_of(head)
    scopes = [scope_of(head.table_id, add) for add in splits]
    known = [each for each in dict.fromkeys(scopes) if each is not None]
    contexts = dict(zip(known, contexts_of(head, known), strict=True))
    return [own if each is None else contexts[each] or own for each in scopes]

"""The audit: check the invariants of splits and compactions against the files (docs/architecture/compaction.md).

The audit checks each live split and each merge. A merge is a group of input splits that one compaction replaced with
output splits. One commit of a compaction can contain several merges. Each output stores the id of its merge
(`Lineage`). `compactions` reads the retained commits, newest first, and the state before each commit.

The entries of a merge in the log can always be checked. Rows of the inputs and outputs can be compared only while the
input files exist. If the collector has deleted an input, the result of the check is "not checkable". This result means
neither valid nor broken.

The audit is planned in this process. The work items run in this process or in Spark tasks. Work items and answers are
therefore JSON. Memory: the snapshot, the actions of the retained compactions, and one split per task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired, Unsupported
from storage_core.compact.invariants import (
    Fault,
    Scope,
    column_faults,
    output_faults,
    row_faults,
    scope_faults,
    scope_of,
    union_schema,
)
from storage_core.compact.work import OPERATION
from storage_core.data.rows import statistics
from storage_core.data.rows.sort_order import SortOrder, is_sorted, sort_indices
from storage_core.data.rows.statistics import RowFingerprint
from storage_core.data.steps import Audit
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Metadata,
    Remove,
    is_ours,
    read_action,
    read_actions,
    to_json_object,
    write_actions,
)
from storage_core.log.codec import commit_info
from storage_core.log.job_run import Answer, Item, JobReport, JobRun, Metrics, TaskEnvironment, as_task
from storage_core.log.live_splits import LiveFiles
from storage_core.log.replay import open_version
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.log.versions import versions_down
from storage_core.maintain.audit_splits import VALUES, AuditedTable, audit_split, is_split_sorted
from storage_core.split.metadata import read_origin
from storage_core.split.read import AHEAD_BYTES, UNREADABLE, OpenSplit, conform_split, open_split
from storage_core.store.contract import ObjectStore

PARALLEL_READS = 4
"""Number of versions that are read at a time. All actions of these versions are in memory."""


def everything(_window: int | None) -> bool:
    """Return True for every window."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The splits and compactions to check. The default is all live splits and all retained compactions.

    - `holds`: selects windows by their start.
    - `since`: only splits and compactions that were added after this version.
    - `commits`: checks only the newest compactions, up to this number, and their live splits.
    - `last_run`: only the compactions of the newest job run that has compactions.
    """

    holds: Callable[[int | None], bool] = everything
    since: int | None = None
    commits: int | None = None
    last_run: bool = False

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a limit below 1 and for more than one of the limits."""
        if self.commits is not None and self.commits < 1:
            raise InvalidInput(f"the number of compactions is {self.commits}. Give 1 or more")
        if sum(each is not None for each in (self.since, self.commits, self.last_run or None)) > 1:
            raise InvalidInput("since, commits and last_run cannot be combined. Give only one of these options")

    @property
    def only_compacted(self) -> bool:
        """Whether only splits written by the chosen compactions are checked."""
        return self.commits is not None or self.last_run


@dataclass(slots=True)
class Compaction:
    """One compaction commit: the removed paths, the added splits, and the state right before the commit.

    If the retained log does not reach back far enough, `metadata` is None and paths are missing in `inputs`.
    """

    version: int
    removed: tuple[str, ...]
    outputs: tuple[Add, ...]
    inputs: dict[str, Add] = field(default_factory=dict)
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class RetainedCompactions:
    """The retained compactions up to a snapshot, newest first. `live` contains the live splits of the snapshot.

    For each path, `events` contains the versions that added (True) or removed (False) the path, newest first. `base`
    contains the splits that were live in the version before the oldest retained compaction. `base` is None if the log
    does not reach back to this time.
    """

    compactions: Sequence[Compaction]
    events: Mapping[str, Sequence[tuple[int, bool]]]
    live: LiveFiles
    base: LiveFiles | None

    def outlived(self, path: str, compaction: Compaction) -> bool:
        """Return whether a split was live after the compaction. The compaction itself did not remove the split.

        The last event up to the compaction decides, because a split can be removed, restored and removed again.
        """
        events = self.events.get(path, ())
        before = next((added for version, added in events if version <= compaction.version), None)
        if before is not None:
            return before
        if self.base is not None:
            return path in self.base
        return path in self.live or any(not added for _, added in events)


def compactions(store: ObjectStore, snapshot: Snapshot, which: Selection) -> RetainedCompactions:
    """Return the retained compactions up to the snapshot.

    Raises:
        Corrupt: A version file is damaged.

    Cost:
        One GET per version, and the requests of opening one older snapshot. `PARALLEL_READS` versions are read at a
        time. A walk can thus read up to `PARALLEL_READS` - 1 unneeded versions. If `which` limits the number of
        compactions, versions are read one by one. Memory: the actions of the compactions, and of the versions that are
        currently read.
    """
    walk = _Walk(which)
    oldest = 0 if which.since is None else which.since + 1
    at_once = 1 if which.only_compacted else PARALLEL_READS
    with closing(versions_down(store, snapshot.version, oldest, at_once=at_once)) as versions:
        for version, actions in versions:
            if not walk.goes_on(version, actions):
                break
    walk.settle(store)
    return RetainedCompactions(walk.found, walk.events, snapshot.splits, walk.base)


class _Walk:
    """A walk through the log, from newer to older versions.

    An instance records which compactions still lack inputs or metadata.
    """

    def __init__(self, which: Selection) -> None:
        self.found: list[Compaction] = []
        self.events: dict[str, list[tuple[int, bool]]] = {}
        self.base: LiveFiles | None = None
        self._which = which
        self._run: str | None = None
        self._wanting: dict[str, Compaction] = {}
        self._unsettled: list[Compaction] = []

    def goes_on(self, version: int, actions: Sequence[Action]) -> bool:
        """Add the next older version. Return False if no older version is needed."""
        info = commit_info(actions)
        compaction = _compaction(version, actions) if info is not None and info.operation == OPERATION else None
        if info is not None and compaction is not None and self._is_another_run(info):
            return False
        self._explain(version, actions)
        if compaction is not None:
            self.found.append(compaction)
            self._unsettled.append(compaction)
            self._wanting |= dict.fromkeys(compaction.removed, compaction)
        return self._which.commits is None or len(self.found) < self._which.commits

    def settle(self, store: ObjectStore) -> None:
        """Fill in the missing inputs and metadata from the snapshot before the oldest compaction."""
        if not self.found:
            return
        try:
            before = open_version(store, self.found[-1].version - 1)
        except (NotFound, Corrupt):
            return
        for compaction in self._unsettled:
            compaction.metadata = before.metadata
        self.base = before.splits
        files = before.splits.table()
        wanted = pa.array(list(self._wanting), pa.string())
        for add in adds_of(files.filter(pc.is_in(files.column("path"), value_set=wanted))):
            self._wanting[add.path].inputs[add.path] = add

    def _is_another_run(self, info: CommitInfo) -> bool:
        if not self._which.last_run:
            return False
        if not self.found:
            self._run = info.jobRunId
            return False
        return self._run is None or info.jobRunId != self._run

    def _explain(self, version: int, actions: Sequence[Action]) -> None:
        changed = {action.path: False for action in actions if isinstance(action, Remove)}
        changed |= {action.path: True for action in actions if isinstance(action, Add)}
        for path, added in changed.items():
            self.events.setdefault(path, []).append((version, added))
        for action in actions:
            match action:
                case Add():
                    compaction = self._wanting.pop(action.path, None)
                    if compaction is not None:
                        compaction.inputs[action.path] = action
                case Metadata():
                    for each in self._unsettled:
                        each.metadata = action
                    self._unsettled.clear()
                case _:
                    pass


def _compaction(version: int, actions: Sequence[Action]) -> Compaction | None:
    removed = tuple(action.path for action in actions if isinstance(action, Remove))
    outputs = tuple(action for action in actions if isinstance(action, Add))
    return Compaction(version, removed, outputs) if removed or outputs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedMerge:
    """One merge of version `version`: the outputs that replaced the inputs.

    `inputs` and `metadata` have the state right before the version. `still_live` contains splits that the outputs claim
    to replace, but the version did not remove. A merge is passed to tasks as JSON.
    """

    version: int
    metadata: Metadata
    inputs: tuple[Add, ...]
    outputs: tuple[Add, ...]
    still_live: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The path that represents the merge in a report.

        It is the path of the first output, or of the first input if there is no output.
        """
        return (*self.outputs, *self.inputs)[0].path

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object that `from_object` reads."""
        return {
            "version": self.version,
            "metadata": to_json_object(self.metadata),
            "inputs": write_actions(self.inputs),
            "outputs": write_actions(self.outputs),
            "stillLive": list(self.still_live),
        }

    @staticmethod
    def from_object(body: dict[str, Any]) -> RetainedMerge:
        """Return the record that `to_object` wrote."""
        where = "audit of a merge"
        return RetainedMerge(
            version=body["version"],
            metadata=read_action(body["metadata"], Metadata, where),
            inputs=read_actions(body["inputs"], Add, where),
            outputs=read_actions(body["outputs"], Add, where),
            still_live=tuple(body["stillLive"]),
        )


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A split or merge that could not be checked: its version, its path and the reason."""

    version: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """The lineage of an output: the common id of all outputs of the merge, and the replaced splits."""

    operation_id: str | None
    paths: tuple[str, ...]


def replaced_by(store: ObjectStore, output: Add) -> Replaced | str:
    """Return the lineage of an output, or the reason why its footer cannot be read.

    Makes ranged GETs for the footer.
    """
    try:
        split = open_split(store, output.as_written, whole=False)
        origin = read_origin(split.metadata, output.path)
    except UNREADABLE as error:
        return str(error)
    lineage = None if origin is None else origin.lineage
    return Replaced(None, ()) if lineage is None else Replaced(lineage.operation_id, tuple(lineage.replaces))


def merges_of(
    retained: RetainedCompactions, said: Mapping[str, Replaced | str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    """Yield the merges of all retained compactions in the chosen windows. The lineage of the outputs identifies each
    merge.
    """
    for compaction in retained.compactions:
        for part in _merges_of(compaction, said, which):
            if isinstance(part, RetainedMerge):
                # The lineage of an output may also contain splits that an earlier merge removed completely (decision
                # 0014).
                kept = tuple(path for path in part.still_live if retained.outlived(path, compaction))
                yield replace(part, still_live=kept)
            else:
                yield part


def _merges_of(
    compaction: Compaction, said: Mapping[str, Replaced | str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    """Yield the merges of one compaction.

    If a removed split is in the lineage of no output, the merge kept no row of the split. Removed splits that are in no
    lineage form one merge for each scope and window. Two merges of the same scope and window cannot be distinguished,
    so the faults are reported together. If the footer of an output is unreadable, merges without an output are not
    reported.
    """
    groups: dict[str | None, list[Add]] = {}
    replaces: dict[str | None, set[str]] = {}
    lost = []
    for output in compaction.outputs:
        answer = said[output.path]
        if isinstance(answer, str):
            lost.append(Unchecked(compaction.version, output.path, answer))
            continue
        groups.setdefault(answer.operation_id, []).append(output)
        replaces.setdefault(answer.operation_id, set()).update(answer.paths)
    rest = set(compaction.removed).difference(*replaces.values())
    if None in groups and not lost:
        # An old release wrote these outputs without a lineage. The whole commit counts as one merge.
        replaces[None] |= rest
        rest = set()
    yield from (each for each in lost if which.holds(_window_of(compaction, each.path)))
    for operation, outputs in groups.items():
        yield from _merge(compaction, outputs, replaces[operation], which)
    for emptied in [] if lost else _by_scope_and_window(compaction, rest):
        yield from _merge(compaction, [], emptied, which)


def _by_scope_and_window(compaction: Compaction, paths: set[str]) -> Iterable[set[str]]:
    """Group removed paths by scope and window. Removed paths of which the log has no entry form one group."""
    found: dict[tuple[Scope | None, int | None] | None, set[str]] = {}
    for path in compaction.removed:
        if path in paths:
            add = compaction.inputs.get(path)
            # All paths are in one table, so the table id does not matter.
            key = None if add is None else (scope_of("", add), add.windowStart)
            found.setdefault(key, set()).add(path)
    return found.values()


def _merge(
    compaction: Compaction, outputs: Sequence[Add], replaced: set[str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    named = [path for path in compaction.removed if path in replaced]
    inputs = [compaction.inputs[path] for path in named if path in compaction.inputs]
    if not any(which.holds(add.windowStart) for add in [*inputs, *outputs]):
        return
    if len(inputs) < len(named) or compaction.metadata is None:
        shown = outputs[0].path if outputs else named[0]
        reason = (
            f"the log does not contain the versions before version {compaction.version}, so the inputs of the "
            "compaction are not known"
        )
        yield Unchecked(compaction.version, shown, reason)
        return
    yield RetainedMerge(
        version=compaction.version,
        metadata=compaction.metadata,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        still_live=tuple(sorted(replaced.difference(named))),
    )


def _window_of(compaction: Compaction, path: str) -> int | None:
    return next(add.windowStart for add in compaction.outputs if add.path == path)


def audit_merge(store: ObjectStore, merged: RetainedMerge) -> tuple[list[Fault], str | None]:
    """Return the faults of a merge, and the reason if its rows could not be compared.

    The check compares visible rows. The check compares the input rows before the version with the output rows after the
    version.

    Cost:
        One GET per input, per output and per stored deletion vector. One split is in memory at a time.
    """
    table = AuditedTable.from_metadata(merged.metadata)
    found = list(_faults_of_the_log(merged, table))
    try:
        return [*found, *_faults_of_the_rows(store, merged, table)], None
    except SnapshotExpired as error:
        return found, f"{error.context.get('key')} has been collected since, so the rows cannot be compared"
    except UNREADABLE as error:
        return found, str(error)


def _faults_of_the_log(merged: RetainedMerge, table: AuditedTable) -> Iterator[Fault]:
    for path in merged.still_live:
        yield Fault("MC-1", f"{merged.name} replaces {path}, but its version did not remove that split")
    if not merged.inputs:
        return
    window = merged.inputs[0].windowStart
    yield from scope_faults(table.table_id, window, merged.inputs, start=table.config.compaction.start)
    yield from output_faults(table.table_id, merged.inputs, merged.outputs)


def _faults_of_the_rows(store: ObjectStore, merged: RetainedMerge, table: AuditedTable) -> Iterator[Fault]:
    schemas: list[tuple[str, pa.Schema]] = []
    before = _fingerprint(_opened(store, merged.inputs, table.schema, schemas))
    try:
        union = union_schema(schemas)
    except InvalidInput as error:
        yield Fault("MC-4", str(error).removeprefix("MC-4: "))
        return
    order = table.order_of(merged.inputs[0]) if merged.inputs else None
    if merged.inputs and order is None and merged.inputs[0].sortSchema is not None:
        yield Fault(
            "MC-3", f"the sort schema {merged.inputs[0].sortSchema!r} names columns that the table did not have"
        )
    outputs = _Outputs(order)
    after = _fingerprint(outputs.looked_at(_opened(store, merged.outputs, table.schema, schemas := [])))
    yield from row_faults(before, after)
    yield from outputs.faults()
    if merged.inputs:
        for _, schema in schemas:
            yield from column_faults(schema, union)


def _opened(
    store: ObjectStore, adds: Sequence[Add], schema: pa.Schema, schemas: list[tuple[str, pa.Schema]]
) -> Iterator[OpenSplit]:
    for add in adds:
        split = open_split(store, add).of_table(schema)
        schemas.append((add.path, split.schema))
        yield split


def _fingerprint(splits: Iterable[OpenSplit]) -> RowFingerprint:
    parts = (statistics.fingerprint_of(rows) for split in splits for rows in split.batches())
    return reduce(statistics.combine, parts, statistics.NO_ROWS)


class _Outputs:
    """The outputs of one merge, checked one after the other for MC-3.

    Each output must be sorted in the order of the inputs, and no two outputs may overlap.
    """

    def __init__(self, order: SortOrder | None) -> None:
        self._order = order
        self._unsorted: list[str] = []
        self._ends: dict[int | None, list[pa.Table]] = {}

    def looked_at(self, splits: Iterable[OpenSplit]) -> Iterator[OpenSplit]:
        """Yield the splits, each after its check."""
        for split in splits:
            if self._order is not None and split.rows:
                self._look(split, self._order)
            yield split

    def _look(self, split: OpenSplit, order: SortOrder) -> None:
        keys = order.present(split.schema.names)
        if not is_split_sorted(split, keys):
            self._unsorted.append(split.add.path)
            return
        names = [each.name for each in keys.columns]
        if not names:
            return
        pieces = (rows for rows in split.batches(names) if rows.num_rows)
        first = next(pieces)
        last = first
        for last in pieces:  # noqa: B007  # only the last one is needed
            pass
        ends = pa.concat_tables([first.slice(0, 1), last.slice(last.num_rows - 1)])
        self._ends.setdefault(split.add.windowStart, []).append(ends)

    def faults(self) -> Iterator[Fault]:
        """Yield the faults that prevent the outputs from being one sorted run."""
        text = "" if self._order is None else self._order.text
        for path in self._unsorted:
            yield Fault("MC-3", f"the rows of {path} are not sorted by the inputs' order {text!r}")
        if self._order is None or self._unsorted:
            return
        if not all(_are_disjoint(ends, self._order) for ends in self._ends.values()):
            yield Fault("MC-3", f"the outputs overlap each other by {text!r}: together they are not one sorted run")


def _are_disjoint(every: Sequence[pa.Table], order: SortOrder) -> bool:
    """Return whether the outputs form one sorted run in some order.

    `every` contains the first and the last row of each output.
    """
    schema = pa.schema({field.name: field for ends in every for field in ends.schema}.values())
    ends = [conform_split(each, schema) for each in every]
    keys = order.present(schema.names)
    by_last = sort_indices(pa.concat_tables([each.slice(1) for each in ends]), keys)
    # Sort by the first row, then by the last row. Two outputs may begin with the same key. The output whose rows all
    # have this key then comes first.
    by_first = sort_indices(pa.concat_tables([ends[number].slice(0, 1) for number in by_last.tolist()]), keys)
    return is_sorted(pa.concat_tables([ends[number] for number in by_last[by_first].tolist()]), keys)


MOST_ITEMS: Final = 1_000
"""The largest number of tasks of one kind.

If there are more splits or merges to check than `MOST_ITEMS`, one task checks several splits or merges. The overhead of
one task is about as large as the check of a small split.
"""

_REWRITE: Final = (
    "Restore the version before the split was added, and write the later rows again. Until then, queries by time may "
    "skip the rows of the split. Report the problem"
)
_RESTORE: Final = (
    "At once, run tidemark restore NAME --to V. V is the version before the compaction. Stop gc until the "
    "restore is complete. Report the "
    "problem"
)
_UNSORTED: Final = (
    "Restore the version before the split was added, and write the later rows again. No compaction accepts the split "
    "in its present form. Report the problem"
)
_NOTHING: Final = "No urgent action, because no row is lost. Report the problem"
_REPLACE: Final = "Set the values with tidemark update. Then run tidemark compact"
_DAMAGED: Final = (
    "Restore the file from a copy of the store, or restore the version before the split was added. Report the problem"
)


@dataclass(frozen=True, slots=True)
class Invariant:
    """An invariant of every valid table, and the advice for a broken table (`docs/operations.md`)."""

    holds: str
    advice: str


INVARIANTS: Final[Mapping[str, Invariant]] = {
    "TW-1": Invariant("every row of a split lies in the window of the split", _REWRITE),
    "TW-2": Invariant(
        "the length of a window divides one hour, or is a number of whole hours if the table declares such windows",
        _REWRITE,
    ),
    "TW-3": Invariant("no row crosses the border of a window when splits are merged", _RESTORE),
    "CS-1": Invariant("only splits of one compatibility scope are merged", _NOTHING),
    "CS-2": Invariant("only splits of one window are merged", _NOTHING),
    "CS-3": Invariant("no window before the start of compaction is merged", _NOTHING),
    "MC-1": Invariant("a merge keeps the number of visible rows", _RESTORE),
    "MC-2": Invariant("a merge keeps every value", _RESTORE),
    "MC-3": Invariant("the outputs of a merge are one run, sorted as its inputs were", _UNSORTED),
    "MC-4": Invariant("the outputs of a merge have the columns of all its inputs", _RESTORE),
    "SS-1": Invariant("the rows of a split are sorted by the sort schema of the split", _UNSORTED),
    "SS-2": Invariant("nulls of a split are first or last, as in the sort schema of the split", _UNSORTED),
    "SS-3": Invariant("a sort column that a split lacks counts as null", _DAMAGED),
    "SS-4": Invariant("a split keeps the sort schema that it was written with", _NOTHING),
    "SS-5": Invariant("file, action, statistics and native metadata of a split agree", _DAMAGED),
    VALUES: Invariant("every value of a split is valid for its type", _REPLACE),
}
"""The invariants by their id in docs/architecture/compaction.md."""

Work = Mapping[str, Any]
Run = Callable[[Sequence[Work]], Sequence[Answer]]
Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken invariant.

    `version` is the version of the merge that broke the invariant. `version` is None for a live split.
    """

    invariant: str
    path: str
    message: str
    version: int | None = None

    @property
    def advice(self) -> str:
        """The advice for the violation."""
        return INVARIANTS[self.invariant].advice


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit of the table at `version`. `splits` and `merges` are the numbers of checked items."""

    version: int
    splits: int
    merges: int
    violations: tuple[Violation, ...]
    unchecked: tuple[Unchecked, ...]

    @property
    def clean(self) -> bool:
        """Whether the audit found no violation of an invariant. Unchecked parts do not count."""
        return not self.violations


def audit(
    store: ObjectStore, snapshot: Snapshot, which: Selection | None = None, *, run: Run | None = None
) -> AuditReport:
    """Check live splits and retained compactions, and return every broken invariant. Writes nothing.

    A missing or unreadable live split is a violation. A merge with unreadable rows is counted and listed as unchecked.

    Args:
        store: Store of the table.
        snapshot: Version to check.
        which: Splits and compactions to check. None means all.
        run: Function that executes work items. None means that this process executes the work items one by one.

    Raises:
        Unsupported: Another program maintains the log of the table.
        Corrupt: The log is damaged.
        Unavailable: The store does not answer.

    Cost:
        One GET per live split and per retained version. One GET per existing input and output of each merge.
    """
    chosen = which or Selection()
    execute_all = run or (lambda works: [execute(store, work) for work in works])
    found = compactions(store, snapshot, chosen)
    merges, unknown = _merges(found, chosen, execute_all)
    splits = _splits(snapshot, chosen, found)
    answers = execute_all([*_split_works(snapshot, splits), *_merge_works(merges)])
    return AuditReport(
        version=snapshot.version,
        splits=len(splits),
        merges=sum(each["merges"] for each in answers),
        violations=tuple(Violation(**each) for answer in answers for each in answer["violations"]),
        unchecked=(*unknown, *(Unchecked(**each) for answer in answers for each in answer["unchecked"])),
    )


def require_ours(snapshot: Snapshot) -> None:
    """Raise `Unsupported` if another program maintains the log.

    The files of a table that another program maintains lack the data that an audit compares.
    """
    if not is_ours(snapshot.protocol):
        raise Unsupported(
            "another program maintains the log of this table, so its files have nothing to audit. See tidemark fsck"
        )


def execute(store: ObjectStore, work: Work) -> Answer:
    """Execute one work item of `audit` and return its answer. Makes the requests that read the item's objects."""
    match work["kind"]:
        case "lineage":
            adds = read_actions(work["adds"], Add, "audit")
            return {"said": {add.path: _said_to_object(replaced_by(store, add)) for add in adds}}
        case "splits":
            return _audited_splits(store, work)
        case "merges":
            return _audited_merges(store, [RetainedMerge.from_object(each) for each in work["merges"]])
        case other:
            raise InvalidInput(
                f"the audit got work of the unknown kind {other!r}. Run the driver and the tasks with the same release"
            )


def bytes_read(work: Work) -> int:
    """Return the approximate number of bytes that a work item reads: whole files, or footers for a lineage item."""
    merges = work.get("merges", ())
    named = [*work.get("adds", ()), *(line for each in merges for line in (*each["inputs"], *each["outputs"]))]
    sizes = [int(line[Add.NAME]["size"]) for line in named]
    return sum(min(size, AHEAD_BYTES) for size in sizes) if work["kind"] == "lineage" else sum(sizes)


def _audited_splits(store: ObjectStore, work: Work) -> Answer:
    table = AuditedTable.from_metadata(read_action(work["metadata"], Metadata, "audit"))
    violations, unchecked = [], []
    for add in read_actions(work["adds"], Add, "audit"):
        try:
            faults = audit_split(store, add, table)
        except Unsupported as error:
            unchecked.append(asdict(Unchecked(work["version"], add.path, str(error))))
            continue
        except (*UNREADABLE, InvalidInput) as error:
            faults = [Fault("SS-5", error.found)]
        violations += [_violation(each, add.path, None) for each in faults]
    return {"merges": 0, "violations": violations, "unchecked": unchecked}


def _audited_merges(store: ObjectStore, merges: Sequence[RetainedMerge]) -> Answer:
    violations, unchecked = [], []
    for merged in merges:
        faults, reason = audit_merge(store, merged)
        violations += [_violation(each, merged.name, merged.version) for each in faults]
        if reason is not None:
            unchecked.append(asdict(Unchecked(merged.version, merged.name, reason)))
    return {"merges": len(merges) - len(unchecked), "violations": violations, "unchecked": unchecked}


def _violation(fault: Fault, path: str, version: int | None) -> dict[str, Any]:
    return asdict(Violation(invariant=fault.invariant, path=path, message=fault.message, version=version))


def _merges(found: RetainedCompactions, which: Selection, run: Run) -> tuple[list[RetainedMerge], list[Unchecked]]:
    outputs = [add for compaction in found.compactions for add in compaction.outputs]
    works: list[Work] = [{"kind": "lineage", "adds": write_actions(adds)} for adds in _shared(outputs)]
    said: dict[str, Replaced | str] = {}
    for answer in run(works):
        said |= {path: _said_from_object(each) for path, each in answer["said"].items()}
    parts = list(merges_of(found, said, which))
    unknown = [each for each in parts if isinstance(each, Unchecked)]
    return [each for each in parts if isinstance(each, RetainedMerge)], unknown


def _splits(snapshot: Snapshot, which: Selection, found: RetainedCompactions) -> Sequence[Add]:
    files = snapshot.splits.table()
    starts = files.column("windowStart")
    windows = [window for window in pc.unique(starts).to_pylist() if which.holds(window)]
    keep = pc.is_in(starts, value_set=pa.array(windows, pa.int64()))
    if which.since is not None:
        keep = pc.and_(keep, pc.greater(pc.fill_null(files.column("addedAtVersion"), 0), which.since))
    if which.only_compacted:
        written = [add.path for compaction in found.compactions for add in compaction.outputs]
        keep = pc.and_(keep, pc.is_in(files.column("path"), value_set=pa.array(written, pa.string())))
    return adds_of(files.filter(keep))


def _split_works(snapshot: Snapshot, splits: Sequence[Add]) -> Iterator[Work]:
    common = {"kind": "splits", "version": snapshot.version, "metadata": to_json_object(snapshot.metadata)}
    for adds in _shared(splits):
        yield {**common, "adds": write_actions(adds)}


def _merge_works(merges: Sequence[RetainedMerge]) -> Iterator[Work]:
    for part in _shared(merges):
        yield {"kind": "merges", "merges": [each.to_object() for each in part]}


def _shared(every: Sequence[Each]) -> Iterator[Sequence[Each]]:
    """Yield the items in groups of equal size, at most `MOST_ITEMS` groups."""
    size = max(1, -(-len(every) // MOST_ITEMS))
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _said_to_object(said: Replaced | str) -> dict[str, Any]:
    return {"lost": said} if isinstance(said, str) else asdict(said)


def _said_from_object(said: Mapping[str, Any]) -> Replaced | str:
    return said["lost"] if "lost" in said else Replaced(said["operation_id"], tuple(said["paths"]))


LOG = logging.getLogger(__name__)

MOST_REPORTED = 1_000
"""The largest number of violations that a report lists. The report always contains the full number of violations."""

DRIVER_BYTES = 64 * 2**20
"""Maximum number of bytes that this process reads itself.

Up to this number, the start of Spark would take longer than the read.
"""


def run_audit(job: JobRun[Audit]) -> JobReport:
    """Audit the requested splits and compactions, and return the report.

    A violation is a finding and not an error. Each split and each merge is one Spark task. If there are very many
    splits or merges, one task gets several of them. If the amount of data is small, this process reads the data itself.
    The step takes no lease and writes nothing. Raises `Unsupported` if another program maintains the log, and
    `InvalidInput` for a version that does not exist.
    """
    options = job.options
    require_ours(job.before)
    options.windows.require_fits(job.before.config.window_seconds, job.before.config.other_windows)
    holds = options.windows.holds
    which = Selection(holds=holds, since=options.since, commits=options.commits, last_run=options.last_run)
    newest = job.before.version
    if options.since is not None and not 0 <= options.since <= newest:
        advice = f"The newest is {newest}. Give a version from 0 to {newest}"
        raise InvalidInput(f"{options.since} is not a version of the table. {advice}", since=options.since)
    found = audit(job.store, job.before, which, run=partial(_execute_all, job))
    for each in found.violations:
        LOG.error("%s: %s: %s", each.invariant, each.path, each.message)
    return job.report("audited", metrics=Metrics(splits_in=found.splits), details=_details(found))


def _execute_all(job: JobRun[Audit], works: Sequence[Work]) -> Sequence[Answer]:
    if sum(map(bytes_read, works)) <= DRIVER_BYTES:
        return [execute(job.store, work) for work in works]
    return job.map(audit_items, [{"work": work} for work in works], writes=False)


def _details(found: AuditReport) -> dict[str, object]:
    return {
        "clean": found.clean,
        "splits": found.splits,
        "merges": found.merges,
        "violated": dict(sorted(Counter(each.invariant for each in found.violations).items())),
        "violations": [{**asdict(each), "advice": each.advice} for each in found.violations[:MOST_REPORTED]],
        "not_checkable": len(found.unchecked),
        "unchecked": [asdict(each) for each in found.unchecked[:MOST_REPORTED]],
    }


@as_task
def audit_items(place: TaskEnvironment, item: Item) -> Answer:
    """Check some splits or merges against their files. Writes nothing."""
    return dict(execute(place.store, item["work"]))

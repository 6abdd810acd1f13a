"""The audit: every invariant of splits and compactions (docs/architecture/compaction.md), judged by the files.

Planned here, executed in this process or, split by split and merge by merge, in tasks of Spark: a work item and its
answer are JSON. In memory are the snapshot, the actions of the retained compactions and, per task, one split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.audit.merges import audit_merge
from storage_core.audit.retained import RetainedCompactions, Selection, compactions
from storage_core.audit.retained_merges import Replaced, RetainedMerge, Unchecked, merges_of, replaced_by
from storage_core.audit.splits import VALUES, AuditedTable, audit_split
from storage_core.compaction.invariants import Fault
from storage_core.errors import InvalidInput, Unsupported
from storage_core.log.actions import Add, Metadata, is_ours, to_json_object
from storage_core.log.encoding.action_json import read_action, read_actions, write_actions
from storage_core.log.files.columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.read import AHEAD_BYTES, UNREADABLE

MOST_ITEMS: Final = 1_000
"""Of more splits or merges some share a task: a task costs about as much as a small split."""

_REWRITE: Final = (
    "restore the version before the split came, and write again what came since: until then queries by time may skip "
    "them; report it"
)
_RESTORE: Final = "at once tidemark restore NAME --to V, V the version before, and stop gc until then; report it"
_UNSORTED: Final = (
    "restore the version before the split came, and write again what came since: no compaction takes it as it is; "
    "report it"
)
_NOTHING: Final = "nothing at once, all rows are there; report it"
_REPLACE: Final = "set the values by tidemark update, then run tidemark compact"
_DAMAGED: Final = (
    "bring the file back from a copy of the store, or restore the version before the split came; report it"
)


@dataclass(frozen=True, slots=True)
class Invariant:
    """What holds of every sound table, and what to do where it does not, as `docs/operations.md` says it, too."""

    holds: str
    advice: str


INVARIANTS: Final[Mapping[str, Invariant]] = {
    "TW-1": Invariant("every row of a split lies in the window of the split", _REWRITE),
    "TW-2": Invariant("a window divides the hour, or is of whole hours where the table asks for it", _REWRITE),
    "TW-3": Invariant("no row crosses the border of a window when splits are merged", _RESTORE),
    "CS-1": Invariant("only splits of one compatibility scope are merged", _NOTHING),
    "CS-2": Invariant("only splits of one window are merged", _NOTHING),
    "CS-3": Invariant("no window before the start of compaction is merged", _NOTHING),
    "MC-1": Invariant("a merge keeps the number of visible rows", _RESTORE),
    "MC-2": Invariant("a merge keeps every value", _RESTORE),
    "MC-3": Invariant("the outputs of a merge are one run, sorted as its inputs were", _UNSORTED),
    "MC-4": Invariant("the outputs of a merge have the columns of all its inputs", _RESTORE),
    "SS-1": Invariant("the rows of a split are sorted as it says", _UNSORTED),
    "SS-2": Invariant("nulls of a split are where it says", _UNSORTED),
    "SS-3": Invariant("a sort column that a split lacks counts as null", _DAMAGED),
    "SS-4": Invariant("a split keeps the sort schema that it was written with", _NOTHING),
    "SS-5": Invariant("file, action, statistics and native metadata of a split agree", _DAMAGED),
    VALUES: Invariant("every value of a split is valid for its type", _REPLACE),
}
"""The ids of docs/architecture/compaction.md, what holds, and what to do where it does not."""

Work = Mapping[str, Any]
Answer = dict[str, Any]
Run = Callable[[Sequence[Work]], Sequence[Answer]]
Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One invariant that does not hold: its id, the split, what is wrong, and the version of the merge, if it was one.

    Without a version it is of the split as it is now.
    """

    invariant: str
    path: str
    message: str
    version: int | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        return INVARIANTS[self.invariant].advice


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit of the table at `version` found, how many splits and merges it judged, and what it could not."""

    version: int
    splits: int
    merges: int
    violations: tuple[Violation, ...]
    unchecked: tuple[Unchecked, ...]

    @property
    def clean(self) -> bool:
        """Whether no invariant is broken; what could not be judged does not count."""
        return not self.violations


def audit(
    store: ObjectStore, snapshot: Snapshot, which: Selection | None = None, *, run: Run | None = None
) -> AuditReport:
    """Return every way in which live splits and retained compactions break an invariant. Reads, and writes nothing.

    One GET per live split; per retained version one, and per merge of a compaction one per input and output more, where
    those are still there: what cannot be read back is counted and named, never passed. An unreadable or vanished live
    split is a violation. `run` executes work items, by default here, one after the other. Raises `Unsupported` for a
    table whose log others keep, `Corrupt` for a damaged log, `Unavailable`.
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
    """Raise `Unsupported` for a table whose log others keep: its files do not say what an audit compares."""
    if not is_ours(snapshot.protocol):
        raise Unsupported("others keep the log of this table, and their files say nothing to audit; see tidemark fsck")


def execute(store: ObjectStore, work: Work) -> Answer:
    """Execute one work item of `audit` and return its answer. Requests and errors are those of what it reads."""
    match work["kind"]:
        case "lineage":
            adds = read_actions(work["adds"], Add, "audit")
            return {"said": {add.path: _said_to_object(replaced_by(store, add)) for add in adds}}
        case "splits":
            return _audited_splits(store, work)
        case "merges":
            return _audited_merges(store, [RetainedMerge.from_object(each) for each in work["merges"]])
        case other:
            raise InvalidInput(f"an audit has no work of the kind {other!r}; driver and tasks run different releases")


def bytes_read(work: Work) -> int:
    """Return about how many bytes executing a work item reads: whole files, or of outputs that are asked the footer."""
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
    """What one task after the other gets, at most `MOST_ITEMS` of them."""
    size = max(1, -(-len(every) // MOST_ITEMS))
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _said_to_object(said: Replaced | str) -> dict[str, Any]:
    return {"lost": said} if isinstance(said, str) else asdict(said)


def _said_from_object(said: Mapping[str, Any]) -> Replaced | str:
    return said["lost"] if "lost" in said else Replaced(said["operation_id"], tuple(said["paths"]))

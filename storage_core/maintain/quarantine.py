"""Operations on the quarantine of a table: list, count, retry and clear entries.

**Validity.** The commit that adds the rows of landed files also references the quarantine objects of these files.
Quarantine objects that no commit references are not valid. If a run ends before its commit, the next run reads its
files again.

**Identity.** Each line or row in quarantine has an identity (`Unit` and line). The identity of a line consists of the
file, the size and content of the file, and the number of the line. `pending_entries` yields a line once, even if
several objects contain the line. Rows of a call of `append` have no file. The identity of such a row is its object and
its position.

**Leaving.** A line leaves the quarantine in a commit. The commit references a receipt, which is an object with the list
of the lines. A retry commits the rows and the receipt together, and every retry advances the same transaction
(`RETRIES`). If two retries were planned on the same version, only one of them commits. No line is therefore added
twice. A `clear` commits only the receipt. Afterwards, objects without pending lines are marked for the collector.

**Pruning.** Every listing reads the receipts. The collector's job therefore combines the receipts into one receipt if
there are many. The combined receipt has only the lines that a stored object still contains. The names of deleted
objects are pruned, too.

**New reasons.** If a retry rejects a line for another reason, the retry writes the line into an object with
`_again.<number>` in its key. If several entries contain a line, the entry with the largest number is valid.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.base.text import fitted
from storage_core.change.creation import GrownTable, grow
from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import DoneLines, Entry, QuarantinedRows, Receipt, RejectedLines
from storage_core.data.formats.keys import QUARANTINE_PREFIX, parse, quarantine_key
from storage_core.data.rows.fold import conformed
from storage_core.data.rows.times import row_text
from storage_core.data.rows.windows import LateRule
from storage_core.data.steps import RetryQuarantine
from storage_core.log.actions import Action, Add, RemoveTxn, Txn
from storage_core.log.conflicts import TxnProgress, pruning
from storage_core.log.job_run import JobReport, JobRun, Metrics, Prediction
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import forgotten_keys, note_forgotten, read_plan
from storage_core.split.context import context_of
from storage_core.store.contract import ObjectStore, create_derived
from storage_core.write.append import fitting
from storage_core.write.ingest.batch import CollectedRows, as_records, text_blocks
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.convert import (
    BLOCK_BYTES,
    LONGEST_REASON,
    OTHERS,
    Parsed,
    RowFormat,
    shared_session,
    tally,
)
from storage_core.write.ingest.drift import NO_DRIFT, QUARANTINE, Drift
from storage_core.write.ingest.landed_regions import CollectedRecords, IsPassed, fill_regions, offset_of
from storage_core.write.ingest.landed_times import AS_WRITTEN, LandedTimes
from storage_core.write.ingest.landing import TYPED, LandedFile, LandingSpec
from storage_core.write.ingest.progress import progress
from storage_core.write.ingest.text_files import ESCAPED, UNCLOSED, is_one_record, ndjson_blocks
from storage_core.write.late_rows import (
    LATE,
    RECEIPTS,
    REWRITTEN,
    SHARED,
    SharedEntries,
    commit_app,
    entry_keys,
    is_receipt,
    late_records,
    read_object,
)

Unit = tuple[str, int | None, str]
"""The file of a line: the file's source, size and content, as recorded in the entry."""

RETRIES: Final = "quarantine:retries"
"""The transaction that counts the commits in which lines left the quarantine."""

_RECEIPT: Final = "quarantine:"
_AGAIN: Final = f"{REWRITTEN}."
_MOST_BYTES: Final = 256 * 2**20
_MOST_KEYED: Final = 1_000
"""The maximum number of entries that a retry puts into a keyed table.

The manifest of a region contains the names of these entries.
"""

_OF_ENTRY: Final = "again:"
"""The prefix of the offsets that identify quarantine entries in the manifest of a region."""

_NUMBER_BITS: Final = 40
"""The number of low bits in the offset of a quarantine entry. The higher bits contain the number of the retry."""

_ATTEMPTS: Final = 5

MOST_OBJECTS = 1_000

Wanted = Callable[[Entry, int], bool]
"""A function that returns whether the line or row at a position of an entry is selected."""


# Reading.


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """The part of a stored entry that is still in quarantine.

    - `key`: the object.
    - `unit`, `lines`: the identity of each line or row, in the order of the entry.
    - `entry`: the entry with only these lines or rows.
    """

    key: str
    unit: Unit
    lines: tuple[int, ...]
    entry: Entry


def receipt_app(receipt_id: str) -> str:
    """Return the appId of the transaction that references a receipt."""
    return _RECEIPT + receipt_id


def done_lines(store: ObjectStore, snapshot: Snapshot) -> dict[Unit, set[int]]:
    """Return the lines that left the quarantine. One GET per receipt.

    A shallow clone has the transactions of its source, but not its quarantine. So a receipt may be missing.
    """
    found: dict[Unit, set[int]] = {}
    for app in snapshot.txns.every("quarantine"):
        if app != RETRIES:
            receipt_id = app.removeprefix(_RECEIPT)
            key = quarantine_key(RECEIPTS, receipt_id)
            with suppress(NotFound):
                for each in arrow_files.decode_receipt(store.get(key).data, key, receipt_id).done:
                    found.setdefault((each.source, each.size, each.content), set()).update(each.lines)
    return found


def pending_entries(
    store: ObjectStore, snapshot: Snapshot, *, most: int | None = None, unneeded: list[str] | None = None
) -> Iterator[PendingEntry]:
    """Yield every line and row in quarantine once. The entries of one quarantine object are consecutive.

    Args:
        most: The most objects to read.
        unneeded: Receives the keys of the objects whose lines have all left the quarantine or are in other objects.

    Raises:
        Corrupt: An object is damaged. The error names the key.

    Cost:
        One LIST per 1,000 objects. One GET per object, and one for the plan of the collector. Memory for one object,
        and for the numbers of all lines.
    """
    keys = valid_keys(store, snapshot)
    if not keys:
        return
    seen = done_lines(store, snapshot)
    for key in keys[:most]:
        try:
            entries = read_object(store, key)
        except NotFound:
            continue
        stored = [_whole(key, entry) for entry in entries]
        found = [left for each in stored if (left := _without(each, seen.get(each.unit, set()))) is not None]
        for each in stored:  # compare only with earlier objects, because one object never contains a line twice
            seen.setdefault(each.unit, set()).update(each.lines)
        if not found and unneeded is not None:
            unneeded.append(key)
        yield from found


def valid_keys(store: ObjectStore, snapshot: Snapshot) -> list[str]:
    """Return the keys of the valid objects with entries that are not marked for the collector.

    The objects of the newest retry come first. One LIST per 1,000 objects, and one GET.
    """
    txns = snapshot.txns
    keys = [key for key in entry_keys(store) if (app := commit_app(key)) is None or app in txns]
    forgotten = forgotten_keys([read_plan(store)]) if keys else frozenset[str]()
    sources = {key: (parsed.source or "") if (parsed := parse(key)) else "" for key in keys if key not in forgotten}
    return sorted((key for key in sources if not is_receipt(key)), key=lambda key: (-_attempt(sources[key]), key))


def _attempt(source: str) -> int:
    number = source.removeprefix(_AGAIN)
    return int(number) if source.startswith(_AGAIN) and number.isascii() and number.isdigit() else 0


def _whole(key: str, entry: Entry) -> PendingEntry:
    if isinstance(entry, RejectedLines):
        lines = tuple(0 if each["line"] is None else int(each["line"]) for each in entry.rejected)
        return PendingEntry(key, (entry.source, entry.size, entry.content or ""), lines, entry)
    if entry.lines is not None:
        return PendingEntry(key, (entry.source, entry.size, entry.content or ""), entry.lines, entry)
    parsed = parse(key)
    object_id = "" if parsed is None else parsed.id
    unit = (entry.source, entry.size, f"entry:{object_id}")
    return PendingEntry(key, unit, tuple(range(entry.rows.num_rows)), entry)


def _without(stored: PendingEntry, gone: set[int]) -> PendingEntry | None:
    """Return the entry without the lines that are gone, or None if no line is left."""
    left = [index for index, line in enumerate(stored.lines) if line not in gone]
    if len(left) == len(stored.lines):
        return stored if left else None
    lines = tuple(stored.lines[index] for index in left)
    return replace(stored, lines=lines, entry=_only(stored.entry, left)) if left else None


def _only(entry: Entry, chosen: Sequence[int]) -> Entry:
    if isinstance(entry, RejectedLines):
        return replace(entry, rejected=tuple(entry.rejected[index] for index in chosen))
    lines = None if entry.lines is None else tuple(entry.lines[index] for index in chosen)
    return replace(entry, rows=entry.rows.take(pa.array(chosen, pa.int64())), lines=lines)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rejected lines in a table's quarantine, by reason (`tally`), and the number of objects that were not read."""

    reasons: Mapping[str, int]
    unread: int

    @property
    def lines(self) -> int:
        """The number of lines in the objects that were read."""
        return sum(self.reasons.values())


def count_rejected(store: ObjectStore, snapshot: Snapshot, most: int = MOST_OBJECTS) -> Quarantined:
    """Return the rejected lines that are still in quarantine, from at most `most` objects.

    Raises the errors of `pending_entries`, and has the same cost.
    """
    reasons: dict[str, int] = {}
    for each in pending_entries(store, snapshot, most=most):
        if isinstance(each.entry, RejectedLines):
            reasons = tally(reasons, each.entry.reasons)
    return Quarantined(reasons, max(0, len(valid_keys(store, snapshot)) - most))


# Leaving.


class _Leaving:
    """The lines that leave the quarantine in one commit."""

    def __init__(self, store: ObjectStore, snapshot: Snapshot) -> None:
        self._store = store
        self.number = snapshot.txns.get(RETRIES, 0) + 1
        self._done: dict[Unit, list[int]] = {}

    def add(self, unit: Unit, lines: Iterable[int]) -> None:
        """Add lines."""
        self._done.setdefault(unit, []).extend(lines)

    def __bool__(self) -> bool:
        return any(self._done.values())

    def write(self, now_ms: int) -> tuple[list[Action], TxnProgress]:
        """Write the receipt.

        Return the actions that reference the receipt, and the requirement of the commit. One PUT.
        """
        done = tuple(
            DoneLines(source=source, size=size, content=content, lines=tuple(sorted(set(lines))))
            for (source, size, content), lines in sorted(self._done.items(), key=repr)
            if lines
        )
        data = arrow_files.encode_receipt(Receipt(number=self.number, done=done))
        receipt_id = arrow_files.id_of(data)
        create_derived(self._store, quarantine_key(RECEIPTS, receipt_id), data, advice="try again")
        names = (receipt_app(receipt_id), RETRIES)
        actions: list[Action] = [Txn(appId=name, version=self.number, lastUpdated=now_ms) for name in names]
        return actions, TxnProgress(RETRIES, self.number - 1)


def clear(log: TransactionLog, snapshot: Snapshot, wanted: Wanted) -> tuple[int, Snapshot]:
    """Remove the selected lines and rows from the quarantine. Return the number of removals and the new version.

    A repeated call removes nothing more. The collector deletes the objects that have no pending lines.

    Raises:
        CommitConflict: Other processes changed the quarantine in every attempt.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        unneeded: list[str] = []
        leaving, left = _Leaving(log.store, snapshot), Counter[str]()
        count = 0
        for each in pending_entries(log.store, snapshot, unneeded=unneeded):
            chosen = [line for index, line in enumerate(each.lines) if wanted(each.entry, index)]
            leaving.add(each.unit, chosen)
            count += len(chosen)
            left[each.key] += len(each.lines) - len(chosen)
        if count:
            actions, requirement = leaving.write(log.clock.now_ms())
            metrics = {"rows_cleared": count}
            try:
                snapshot = log.commit(
                    snapshot, actions, operation="CLEAR QUARANTINE", metrics=metrics, requirements=[requirement]
                ).snapshot
            except CommitConflict:
                if attempt == _ATTEMPTS:
                    raise
                snapshot = log.refresh(snapshot)
                continue
        _mark(log, [*unneeded, *(key for key, lines in left.items() if not lines)])
        return count, snapshot
    raise AssertionError("unreachable")


MOST_RECEIPTS: Final = 8
"""The maximum number of receipts that `prune` leaves. A listing of the quarantine sends one GET per receipt."""


def prune(log: TransactionLog, *, dry_run: bool = False, require_held: Callable[[], None] = lambda: None) -> int:
    """Combine the receipts if there are many, and prune the names of objects that the collector has deleted.

    Return the number of transactions that were removed. A receipt is marked for the collector under two conditions. No
    transaction references the receipt any more, and the receipt is older than the horizon. A retry may be about to
    commit a reference to a receipt that is newer than the horizon.

    Args:
        require_held: called before the commit. It raises if the caller has lost its lease.

    Raises:
        CommitConflict: Other commits were first in every attempt.

    Cost:
        For a table with such transactions, one LIST per 1,000 objects of the quarantine. To fold, one GET per receipt
        and per object of the quarantine, one PUT and one commit.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        head = log.snapshot()
        receipts = [app for app in head.txns.every("quarantine") if app != RETRIES]
        names = [*head.txns.every("quarantined")]
        if not receipts and not names:
            return 0
        # The objects are listed after the snapshot is read. Each object that the snapshot references was durable before
        # the commit that added the reference. If the object is missing now, the collector has deleted it.
        stored = {info.key: info for info in log.store.list(QUARANTINE_PREFIX)}
        gone = [app for app in names if quarantine_key(SHARED, app.partition(":")[2]) not in stored]
        folded = receipts if len(receipts) > MOST_RECEIPTS else []
        if dry_run:
            return len(gone) + len(folded)
        try:
            if gone or folded:
                require_held()
                actions, requirements = _folded(log, head, stored) if folded else ([], [])
                removed = [RemoveTxn(appId=app) for app in (*gone, *folded)]
                head = log.commit(
                    head, [*actions, *removed, pruning(head)], operation="PRUNE QUARANTINE", requirements=requirements
                ).snapshot
        except CommitConflict:
            if attempt == _ATTEMPTS:
                raise
            continue
        before_ms = log.clock.now_ms() - head.config.gc_horizon_ms
        old = [key for key, info in stored.items() if is_receipt(key) and info.last_modified_ms < before_ms]
        ids = {key: parsed.id for key in old if (parsed := parse(key)) is not None}
        _mark(log, [key for key, receipt_id in ids.items() if receipt_app(receipt_id or "") not in head.txns])
        return len(gone) + len(folded)
    raise AssertionError("unreachable")


def _folded(log: TransactionLog, head: Snapshot, stored: Iterable[str]) -> tuple[list[Action], Sequence[TxnProgress]]:
    """Write one receipt that combines all receipts. The receipt has only the lines that stored objects still contain.

    The function also reads objects that the collector will delete. If the collector's plan is lost, these objects
    become valid again. A unit with an empty content hash is a file that was rejected completely. A later run may store
    the same entry again.
    """
    present: dict[Unit, set[int]] = {}
    for key in stored:
        with suppress(NotFound):
            for each in (_whole(key, entry) for entry in read_object(log.store, key)):
                present.setdefault(each.unit, set()).update(each.lines)
    leaving = _Leaving(log.store, head)
    for unit, lines in done_lines(log.store, head).items():
        leaving.add(unit, lines if unit[2] == "" else lines & present.get(unit, set()))
    actions, requirement = leaving.write(log.clock.now_ms())
    return actions, [requirement]


def _mark(log: TransactionLog, keys: Sequence[str]) -> None:
    if keys:
        note_forgotten(log.store, sorted(keys), ids=log.ids, now_ms=log.clock.now_ms())


# Retry.


@dataclass(slots=True)
class _Outcome:
    """The outcome of a retry: the numbers of read and added rows, and the reasons of the lines that still fail.

    `older` counts the added records without effect, because they are older than the row of their key.
    """

    read: int = 0
    added: int = 0
    older: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    drift: Drift = NO_DRIFT
    counted_as: str = "fields_ignored"
    not_retried: Counter[str] = field(default_factory=Counter)

    @property
    def details(self) -> dict[str, object]:
        """The details of the report."""
        return {
            "read": self.read,
            "added": self.added,
            "still_rejected": sum(self.reasons.values()),
            "rejected_reasons": dict(self.reasons),
            "not_retried": dict(self.not_retried),
            **({self.counted_as: dict(self.drift.counts)} if self.drift.counts else {}),
            **({"rows_older": self.older} if self.older else {}),
        }


NOT_COMMITTED = "the file is not completely in the table. Ingest it first"
WHOLE_FILE = "the whole file was rejected. Land the file under a new name"
NO_HEADER = "the header of the CSV file is not stored. Land the corrected lines as a new file"
NO_ARRIVAL = "its times have no year, and the landing time of the file is not stored. Land the lines as a new file"
NOT_A_FILE = "the entry is not from a landed file or an append. Write the records again"


def retry(job: JobRun[RetryQuarantine], spec: LandingSpec | None) -> JobReport:
    """Retry the entries in quarantine with the present declaration, each line exactly once.

    The lines are parsed with the format of `spec` and the schema of the table. The rows that are valid now are added in
    one commit. Late rows stay late unless the rule accepts them now, or the run accepts late rows. The other lines stay
    in quarantine with their new reason. A run reads whole objects, and stops when the entries that it has read exceed
    256 MiB. The next run reads the entries that are then in quarantine. The next run first reads the lines that still
    fail.

    In a keyed table, the records become generations of their regions, as in an ingest. The records of a retry are
    applied after all existing records of the table, unless the landing location declares `order_by`.

    Raises:
        InvalidInput: The format cannot be read with the columns of the table.
        CommitConflict: Other processes changed the quarantine in every attempt.
        Fenced: Another process claimed a region of a keyed table. Try again.
    """
    return job.carry_out(
        partial(_plan, job),
        lambda found: _retried(job, spec, found),
        predict=lambda found: Prediction(benefit=sum(len(each.lines) for each in found.entries), unit="rows"),
        planned=lambda found: {"details": {"read": sum(len(each.lines) for each in found.entries)}},
        nothing=lambda _: job.report("nothing_to_do", details=_Outcome().details),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of a retry.

    `entries` are the entries to retry. `others` contains, for each quarantine object, the number of lines that are not
    retried. `unneeded` contains the objects without pending lines.
    """

    entries: list[PendingEntry]
    others: Counter[str]
    unneeded: list[str]

    def __len__(self) -> int:
        return len(self.entries) + len(self.unneeded)


def _plan(job: JobRun[RetryQuarantine], snapshot: Snapshot) -> _Plan:
    """Return the entries to retry. At most one object after the limit is read."""
    found: list[PendingEntry] = []
    others, unneeded, size = Counter[str](), list[str](), 0
    most = _MOST_KEYED if snapshot.config.kind == "keyed" else math.inf
    for each in pending_entries(job.store, snapshot, unneeded=unneeded):
        is_full = size > _MOST_BYTES or len(found) >= most
        if is_full and each.key != found[-1].key:  # the entries of one object are consecutive
            break
        if not is_full and job.options.source in (None, each.entry.source):
            found.append(each)
            size += _size(each.entry)
        else:
            others[each.key] += len(each.lines)
    if snapshot.config.kind == "keyed":  # the records of a key are in the order of the files
        found.sort(key=lambda each: (_arrival(each.entry), each.entry.source, each.lines))
    read = {each.key for each in found}
    return _Plan(found, Counter({key: lines for key, lines in others.items() if key in read}), unneeded)


def _arrival(entry: Entry) -> int:
    return (entry.landed_ms if isinstance(entry, RejectedLines) else entry.arrived_ms) or 0


def _size(entry: Entry) -> int:
    if isinstance(entry, RejectedLines):
        return sum(len(str(each.get("text", ""))) for each in entry.rejected)
    return int(entry.rows.nbytes)


def _retried(job: JobRun[RetryQuarantine], spec: LandingSpec | None, plan: _Plan) -> JobReport:
    found = _applied(job, spec, plan, None)
    if found.outcome.drift.changes_columns and spec is not None:  # read again with the columns that the lines need
        found = _applied(job, spec, plan, grow(job.before, found.outcome.drift, spec.max_new_fields))
    report = _committed(job, found)
    _mark(job.log, [*plan.unneeded, *(key for key, lines in found.left.items() if not lines)])
    return report


@dataclass(frozen=True, slots=True)
class _AppliedPlan:
    """The result of a plan: the written rows, the outcome, and the number of lines that stay in each object."""

    grown: GrownTable
    leaving: _Leaving
    adds: Sequence[Add]
    outcome: _Outcome
    left: Counter[str]


def _applied(
    job: JobRun[RetryQuarantine], spec: LandingSpec | None, plan: _Plan, grown: GrownTable | None
) -> _AppliedPlan:
    """Read the lines of a plan.

    If `grown` is set, the table already has all columns that the lines need. If `grown` is None, the lines may need new
    columns.
    """
    log, store = job.log, job.store
    snapshot, now_ms = (job.before if grown is None else grown.snapshot), log.clock.now_ms()
    sources = {each.unit[0] for each in plan.entries}
    declared = _Declared(snapshot, spec, now_ms, sources, accept_late=job.options.accept_late, grown=grown)
    collector = CollectedRows if declared.changes is None else CollectedRecords
    collected = collector(store, context_of(snapshot), log.ids, now_ms)
    offsets: dict[str, int] = {}
    leaving, outcome = _Leaving(store, snapshot), _Outcome()
    again = SharedEntries(store, f"{_AGAIN}{leaving.number}")
    left = Counter(plan.others)
    with shared_session():
        for each in plan.entries:
            left[each.key] += len(each.lines)
            why_not = declared.why_not(each)
            if why_not is not None:
                outcome.not_retried[why_not] += len(each.lines)
                continue
            rows, passed, reasons = declared.apply(each)
            if declared.drift.changes_columns:
                continue
            name = f"{_OF_ENTRY}{xxhash.xxh3_128_hexdigest(repr((each.key, each.unit)).encode())}"
            texts = (declared.form, repr([each.lines[index] for index in passed]))
            offsets[name] = leaving.number << _NUMBER_BITS | offset_of(*texts, bits=_NUMBER_BITS)
            collected.add(rows, name)
            leaving.add(each.unit, (each.lines[index] for index in passed))
            kept = _failed_again(each, reasons, has_passed=bool(len(passed)))
            for entry in kept:
                again.add(entry)
            left[each.key] -= len(passed) + sum(sum(entry.reasons.values()) for entry in kept)
            outcome.read += len(each.lines)
            outcome.added += len(passed)
            outcome.reasons = tally(outcome.reasons, Counter(reasons.values()))
    outcome.drift, outcome.counted_as = declared.drift, (QUARANTINE if spec is None else spec.drift).counted_as
    if not outcome.drift.changes_columns:
        collected.write_all()
        again.write_all()
        if collected.parts and declared.changes is not None:
            check = partial(_require_first, job, leaving.number)
            _, outcome.older = fill_regions(job, collected.parts, offsets, order=declared.changes.order, check=check)
    return _AppliedPlan(grown or GrownTable(snapshot, {}, {}, {}), leaving, collected.adds, outcome, left)


def _require_first(job: JobRun[RetryQuarantine], number: int) -> IsPassed:
    """Raise `CommitConflict` if another retry has committed since the plan. Return the offsets of earlier retries."""
    TxnProgress(RETRIES, number - 1).check(job.log.refresh(job.before))
    return lambda name, last: name.startswith(_OF_ENTRY) and last >> _NUMBER_BITS < number


def _committed(job: JobRun[RetryQuarantine], found: _AppliedPlan) -> JobReport:
    outcome, adds = found.outcome, found.adds
    grown = found.grown if adds else found.grown.without_changes(job.before)
    if not found.leaving:
        return job.report("nothing_to_do", details=outcome.details | grown.details)
    actions, requirement = found.leaving.write(job.log.clock.now_ms())
    metrics = replace(
        Metrics.of_adds(adds),
        rows_in=outcome.read,
        rows_out=outcome.added - outcome.older,
        rows_older=outcome.older,
        **{outcome.counted_as: sum(outcome.drift.counts.values())},
        columns_added=len(grown.added),
        columns_widened=len(grown.widened),
    )
    return job.commit(
        [*grown.actions, *adds, *actions],
        operation="RETRY QUARANTINE",
        metrics=metrics,
        requirements=[requirement],
        details=outcome.details | grown.details,
        benefit=outcome.added,
    )


def _failed_again(each: PendingEntry, reasons: Mapping[int, str], *, has_passed: bool) -> list[Entry]:
    """Return the entries to write again: the lines with a new reason.

    If a row does not come from a file, its identity contains the key of the quarantine object. If a row leaves a
    quarantine object, the function rewrites the object's remaining rows that do not come from a file.
    """
    entry, (_, _, content) = each.entry, each.unit
    if isinstance(entry, RejectedLines):
        changed = [index for index, reason in reasons.items() if reason != entry.rejected[index]["reason"]]
        lines = tuple({**entry.rejected[index], "reason": reasons[index]} for index in sorted(changed))
        return [replace(entry, rejected=lines, content=content)] if lines else []
    by_reason: dict[str, list[int]] = {}
    for index, reason in sorted(reasons.items()):
        if reason != entry.reason or (has_passed and entry.lines is None):
            by_reason.setdefault(reason, []).append(index)
    whole = replace(entry, content=content, lines=each.lines)
    found = [(reason, _only(whole, chosen)) for reason, chosen in by_reason.items()]
    return [replace(part, reason=reason) for reason, part in found if isinstance(part, QuarantinedRows)]


Applied = tuple[pa.Table, Sequence[int], Mapping[int, str]]
"""The rows of an entry that are valid now, with their positions. For each position with an invalid row, the value
contains the reason why the row is not valid.
"""


class _Declared:
    """The current declaration of the table, which is applied to the quarantine entries of some sources."""

    def __init__(
        self,
        snapshot: Snapshot,
        spec: LandingSpec | None,
        now_ms: int,
        sources: Collection[str],
        *,
        accept_late: bool,
        grown: GrownTable | None,
    ) -> None:
        rule_of_drift, self.drift = QUARANTINE if spec is None else spec.drift, NO_DRIFT
        self._drift_rule = rule_of_drift if grown is None else rule_of_drift.settled(grown.refused)
        if spec is not None:
            spec.check_time_format()
        self._schema, self._config, self._spec, self._now_ms = snapshot.schema, snapshot.config, spec, now_ms
        self.changes = _changes_of(spec, snapshot)
        self._none = (self._schema if self.changes is None else self.changes.records).empty_table()
        self.form = "" if spec is None else spec.to_json() + snapshot.metadata.schemaString
        rule = None if accept_late else LateRule.of(self._config)
        self._rule = None if rule is None or rule.late_data.policy == "accept" else rule
        self._progress = progress(snapshot.txns, (LandedFile(each, 0, "") for each in sources))

    def why_not(self, each: PendingEntry) -> str | None:
        """Return why the entry cannot be retried, or None.

        A file that is not completely in the table may still give some of these rows. A retry would add them twice.
        """
        source, size, content = each.unit
        entry = each.entry
        if content.startswith("etag:") or (0 in each.lines and isinstance(entry, RejectedLines)):
            return WHOLE_FILE
        if size is None:
            return None if source == "append" and self.changes is None else NOT_A_FILE
        is_file = isinstance(entry, RejectedLines) or entry.by == "ingest"
        if not is_file or self._spec is None:
            return NOT_A_FILE
        if isinstance(entry, RejectedLines) and self._has_header and entry.header is None:
            return NO_HEADER
        if isinstance(entry, RejectedLines) and self._spec.year is not None and entry.landed_ms is None:
            return NO_ARRIVAL
        known = self._progress[source]
        if content.startswith("entry:") or known.holds(size, content):
            return None
        return WHOLE_FILE if known.rejected_size == size else NOT_COMMITTED

    def apply(self, each: PendingEntry) -> Applied:
        """Return the rows of the entry that are valid now."""
        if isinstance(each.entry, RejectedLines):
            rows, positions, reasons = self._parsed(each.entry)
            arrived = each.entry.landed_ms
        else:
            rows, positions, reasons = self._fitting(each.entry)
            arrived = each.entry.arrived_ms
        if self._rule is None or not rows.num_rows:
            return rows, positions.tolist(), reasons
        is_late = self._rule.is_late if self.changes is None else partial(late_records, self._rule)
        late = np.asarray(is_late(rows, self._now_ms if arrived is None else arrived))
        reasons = {**reasons, **dict.fromkeys(positions[late].tolist(), LATE)}
        return rows.filter(pa.array(~late)), positions[~late].tolist(), reasons

    def _fitting(self, entry: QuarantinedRows) -> tuple[pa.Table, npt.NDArray[np.int64], dict[int, str]]:
        try:
            if self.changes is not None:
                rows = conformed(entry.rows, self.changes.records)
            else:
                (rows,) = fitting(entry.rows, self._schema, self._config.nonzero_vectors)
        except (InvalidInput, CommitConflict) as error:
            reasons = dict.fromkeys(range(entry.rows.num_rows), str(error))
            return self._none, np.zeros(0, np.int64), reasons
        order = None if self.changes is None else self.changes.order
        if order is None or not rows.column(order).null_count:
            return rows, np.arange(rows.num_rows), {}
        # The entry is older than `order_by`, so its records may have no order.
        fits = np.asarray(rows.column(order).is_valid())
        missing = dict.fromkeys(np.flatnonzero(~fits).tolist(), f"column {order}: a value is required")
        return rows.filter(pa.array(fits)), np.flatnonzero(fits), missing

    def _parsed(self, entry: RejectedLines) -> tuple[pa.Table, npt.NDArray[np.int64], dict[int, str]]:
        reasons = {index: str(each["reason"]) for index, each in enumerate(entry.rejected)}
        texts = [_bytes_of(each) for each in entry.rejected]
        parts, places = [self._none], [np.zeros(0, np.int64)]
        for chosen, times in self._groups(entry, texts, reasons):
            rows, positions = self._read(entry, [texts[index] for index in chosen], times, (chosen, reasons))
            parts.append(rows)
            places.append(positions)
        positions = np.concatenate(places)
        for index in positions.tolist():
            reasons.pop(index)
        return pa.concat_tables(parts), positions, reasons

    def _groups(
        self, entry: RejectedLines, texts: Sequence[bytes], reasons: Mapping[int, str]
    ) -> Iterator[tuple[list[int], LandedTimes]]:
        """Yield groups of texts that can be read together.

        A group has the positions of its texts, and the meaning of the times in these texts.

        Each of the texts is one record in the present format, so the number of a record shows its text.
        """
        spec = self._spec
        if spec is None:
            yield [index for index, text in enumerate(texts) if text and b"\n" not in text], AS_WRITTEN
            return
        landed = LandedFile(path=entry.source, size=entry.size, uri=spec.uri, landed_ms=entry.landed_ms)
        times = spec.times_of(landed)
        if spec.format == "csv":
            whole = [index for index, text in enumerate(texts) if text and reasons[index] not in (UNCLOSED, ESCAPED)]
            yield [index for index in whole if is_one_record(texts[index].decode("latin-1"), spec.dialect)], times
            return
        chosen = [index for index, text in enumerate(texts) if text and b"\n" not in text]
        # A time of a typed file is stored as a number or, after its conversion, as text.
        as_text = {index for index in chosen if _has_text_time(texts[index], times)} if spec.format in TYPED else set()
        yield [index for index in chosen if index not in as_text], times
        yield [*sorted(as_text)], replace(times, units={})

    def _read(
        self,
        entry: RejectedLines,
        texts: Sequence[bytes],
        times: LandedTimes,
        into: tuple[Sequence[int], dict[int, str]],
    ) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """Return the parsed rows and the entry position of each row. Store the reason for each invalid text."""
        chosen, reasons = into
        none = self._none
        if not chosen:
            return none, np.zeros(0, np.int64)
        head = [entry.header.encode()] if entry.header is not None and self._has_header else []
        first = 1 + len(head)
        stream = io.BytesIO(b"\n".join([*head, *texts]) + b"\n")
        try:
            blocks = [*self._blocks(entry.source, stream, times)]
        except Corrupt as error:
            reasons |= dict.fromkeys(chosen, error.found)
            return none, np.zeros(0, np.int64)
        for block in blocks:
            self.drift |= block.drift
            for line in block.rejected:
                if line.line is not None and first <= line.line < first + len(chosen):
                    reasons[chosen[line.line - first]] = line.reason
        numbers = np.concatenate([np.zeros(0, np.int64), *(block.numbers for block in blocks)])
        rows = pa.concat_tables([none, *(block.rows for block in blocks)])
        return rows, np.array(chosen, np.int64)[numbers - first]

    @property
    def _has_header(self) -> bool:
        """Whether the first record of a file contains the column names."""
        return self._spec is not None and self._spec.format == "csv" and self._spec.header

    def _blocks(self, source: str, stream: io.BytesIO, times: LandedTimes) -> Iterator[Parsed]:
        spec, config, changes = self._spec, self._config, self.changes
        fields = self._schema if changes is None else changes.fields
        nonzero, drift = frozenset(config.nonzero_vectors), self._drift_rule
        target = RowFormat(fields, config.time_column, nonzero=nonzero, times=times, drift=drift, changes=changes)
        is_typed = spec is None or spec.format in TYPED
        if spec is None or is_typed:  # the values of a typed row are stored as JSON
            blocks = ndjson_blocks(source, stream, target, block_bytes=BLOCK_BYTES)
        else:
            target = replace(target, time_format=spec.time_format, null_values=spec.null_values)
            if spec.format == "json":  # each record is stored as one line
                spec = replace(spec, format="ndjson")
            blocks = text_blocks(source, stream, spec, target, block_bytes=BLOCK_BYTES)
        if changes is None:
            return blocks
        # The JSON of a typed row contains every column, and a patch sets only the columns with a value.
        return (as_records(replace(each, given=None) if is_typed else each, changes) for each in blocks)


def _changes_of(spec: LandingSpec | None, snapshot: Snapshot) -> ChangeFormat | None:
    config = snapshot.config
    if spec is not None:
        return ChangeFormat.of(spec, snapshot.schema, config)
    return ChangeFormat(snapshot.schema, config.primary_key, config.merged_maps) if config.kind == "keyed" else None


def _has_text_time(text: bytes, times: LandedTimes) -> bool:
    """Return whether the record has a text in a time column that also accepts numbers."""
    if not times.units:
        return False
    try:
        row = json.loads(text)
    except ValueError:
        return False
    return isinstance(row, dict) and any(isinstance(row.get(name), str) for name in times.units)


def _bytes_of(line: Mapping[str, object]) -> bytes:
    text = str(line.get("text", ""))
    return base64.b64decode(text) if line.get("encoding") == "base64" else text.encode("utf-8", "surrogatepass")


# Listing.


def selection(source: str | None, reason: str | None) -> Wanted:
    """Return a function that selects lines of this source.

    The function selects a line if the line's reason contains the text `reason`. An argument that is None selects all
    lines.
    """

    def is_chosen(entry: Entry, index: int) -> bool:
        return source in (None, entry.source) and (reason is None or reason in _reason(entry, index))

    return is_chosen


def selected_entries(store: ObjectStore, snapshot: Snapshot, wanted: Wanted) -> Iterator[PendingEntry]:
    """Yield the selected lines and rows. Raises the errors of `pending_entries`, and has the same cost."""
    for each in pending_entries(store, snapshot):
        chosen = [index for index in range(len(each.lines)) if wanted(each.entry, index)]
        if chosen:
            lines = tuple(each.lines[index] for index in chosen)
            yield replace(each, lines=lines, entry=_only(each.entry, chosen))


MOST_SAMPLES = 3
_MOST_GROUPS = 10_000
_LONGEST_SAMPLE = 500
_DAY_MS = 86_400_000


@dataclass(slots=True)
class Summary:
    """The number of quarantined lines or rows with the same reason, source and day, and a few samples.

    `day` is the day of arrival in UTC, in days since the epoch, or None if the arrival is unknown. A sample is the
    number of the line and its text, or the values of the row as JSON.
    """

    reason: str
    source: str | None
    day: int | None
    count: int = 0
    samples: list[tuple[int, str]] = field(default_factory=list)


def summarize(entries: Iterable[PendingEntry]) -> list[Summary]:
    """Return a summary per reason, source and day. Summaries with more lines come first.

    Foreign files can contain any number of reasons. After 10,000 groups, further reasons become `other reasons`.
    """
    found: dict[tuple[str, str | None, int | None], Summary] = {}
    for each in entries:
        entry = each.entry
        arrived = entry.landed_ms if isinstance(entry, RejectedLines) else entry.arrived_ms
        day = None if arrived is None else arrived // _DAY_MS
        for index, line in enumerate(each.lines):
            group: tuple[str, str | None, int | None]
            group = (fitted(_reason(entry, index), LONGEST_REASON), entry.source, day)
            if group not in found and len(found) >= _MOST_GROUPS:
                group = (OTHERS, None, None)
            summary = found.setdefault(group, Summary(*group))
            summary.count += 1
            if len(summary.samples) < MOST_SAMPLES:
                summary.samples.append((line, fitted(_text(entry, index), _LONGEST_SAMPLE)))
    return sorted(found.values(), key=lambda each: (-each.count, each.reason, each.source or "", each.day or 0))


def _reason(entry: Entry, index: int) -> str:
    return str(entry.rejected[index]["reason"]) if isinstance(entry, RejectedLines) else entry.reason


def _text(entry: Entry, index: int) -> str:
    if isinstance(entry, RejectedLines):
        return str(entry.rejected[index].get("text", ""))
    return row_text(entry.rows, index)

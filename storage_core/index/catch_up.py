"""Catch-up: one segment for every live split that has none, in one commit (docs/architecture/indexes.md).

The driver plans and commits, tasks execute one work item each; items travel as JSON. A run that dies before its commit
leaves orphan segments, which the collector removes. A run with nothing to do plans nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from storage_core.ids import Ids
from storage_core.index import segments
from storage_core.log.actions import Action, Add, IndexSegment, RemoveIndexSegment, to_json_object
from storage_core.log.encoding.action_json import read_action
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.schema import from_schema_string
from storage_core.settings.index import IndexDefinition, IndexKind


@dataclass(frozen=True, slots=True)
class CatchUpWork:
    """One split to index, with all that a task needs; `schema_string` is the table's schema as Spark JSON."""

    definition: IndexDefinition
    add: Add
    schema_string: str

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal item."""
        described = {
            "name": self.definition.name,
            "kind": self.definition.kind,
            "columns": list(self.definition.columns),
            "options": dict(self.definition.options),
        }
        body = {"index": described, "split": to_json_object(self.add), "schema": self.schema_string}
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> CatchUpWork:
        """Return the item that `to_json` wrote."""
        body = json.loads(text)
        add = read_action(body["split"], Add, "catch-up work item")
        described = body["index"]
        definition = IndexDefinition(
            name=described["name"],
            kind=cast("IndexKind", described["kind"]),
            columns=tuple(described["columns"]),
            options=described["options"],
        )
        return CatchUpWork(definition=definition, add=add, schema_string=body["schema"])


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """What an index lacks at a version, and the segments it has no use for any more."""

    index: str
    version: int
    work: tuple[CatchUpWork, ...]
    stale: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """True when the index is caught up and has nothing stale: there is nothing to execute or commit."""
        return not self.work and not self.stale

    def actions(self, built: Iterable[IndexSegment]) -> list[Action]:
        """Return the actions of the one commit that ends the run, given the segments that the tasks built."""
        removed = [RemoveIndexSegment(index=self.index, path=path) for path in self.stale]
        return [*removed, *sorted(built, key=lambda segment: segment.covers)]


def plan(snapshot: Snapshot, index: str) -> CatchUpPlan:
    """Return the work that makes `index` cover every live split of the snapshot. No request; same snapshot, same plan.

    Raises `NotFound` for an index that is not defined, `InvalidInput` for one that does not fit the schema.
    """
    covered = segments.coverage(snapshot, segments.definition_of(snapshot, index))
    schema_string = snapshot.metadata.schemaString
    work = tuple(CatchUpWork(covered.definition, add, schema_string) for add in covered.missing)
    return CatchUpPlan(index=index, version=snapshot.version, work=work, stale=covered.stale)


def execute(store: ObjectStore, work: CatchUpWork, *, ids: Ids) -> IndexSegment:
    """Build and store the segment of one split, and return the action to commit. One GET, one PUT.

    Memory is bounded by the split. Executing an item twice gives two objects; only the one that is committed counts.
    """
    files = segments.build(store, work.add, work.definition, from_schema_string(work.schema_string))
    return segments.write(store, files, definition=work.definition, add=work.add, ids=ids)


def watermark(snapshot: Snapshot, index: str) -> int:
    """Return the version up to which the index covers every split that is live in the snapshot.

    Derived, never stored, so it cannot disagree with the segments: the snapshot's version when all live splits are
    covered, else one less than the version that added the oldest uncovered split.
    """
    covered = segments.coverage(snapshot, segments.definition_of(snapshot, index))
    return min((snapshot.splits.added_at(add.path)[0] - 1 for add in covered.missing), default=snapshot.version)

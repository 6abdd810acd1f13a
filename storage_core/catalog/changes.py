"""What one version changes: the net of its actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from storage_core.catalog.known import Known, canonical_json
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    MergedGenerations,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    to_json_object,
)
from storage_core.log.snapshot import require_readable


@dataclass(slots=True)
class Changes:
    """Splits and segments by path: those that are live after the version, and those whose rows end with it."""

    added: dict[str, Add] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    segments: dict[str, IndexSegment] = field(default_factory=dict)
    closed_segments: set[str] = field(default_factory=set)
    regions: dict[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    protocol: Protocol | None = None

    @staticmethod
    def of(actions: Iterable[Action]) -> Changes:
        """Return what the actions of a version lead to, in their order. Raises `Unsupported`."""
        found = Changes()
        for action in actions:
            found._take(action)
        return found

    def settings(self, before: Known) -> Known:
        """Return what is known of the table with the settings of this version."""
        if self.protocol is not None:
            before = replace(before, protocol=canonical_json(to_json_object(self.protocol)[Protocol.NAME]))
        if self.metadata is None:
            return before
        configuration = canonical_json(dict(self.metadata.configuration))
        return replace(before, schema_string=self.metadata.schemaString, configuration=configuration)

    def _take(self, action: Action) -> None:
        match action:
            case Add():
                self.closed.add(action.path)
                self.added[action.path] = action
            case Remove():
                self.closed.add(action.path)
                self.added.pop(action.path, None)
            case IndexSegment():
                self.closed_segments.add(action.path)
                self.segments[action.path] = action
            case RemoveIndexSegment():
                self.closed_segments.add(action.path)
                self.segments.pop(action.path, None)
            case MergedGenerations():
                self.regions[action.region] = action.generation
            case Metadata():
                self.metadata = action
            case Protocol():
                require_readable(action)
                self.protocol = action
            case _:
                pass

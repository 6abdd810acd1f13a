"""What a batch ingest plans and what comes back: both travel between driver and tasks as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage_core.ingest.landing import LandedFile, LandingSpec
from storage_core.ingest.progress import Window
from storage_core.ingest.spans import Span
from storage_core.log.actions import Action, Add, Txn
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.rows.late import LateMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """One file to ingest; travels to a task as JSON.

    `windows` None means every window, `done` those that are in already, `spans` windows of other durations
    whose rows are. `ingested_size` is set when the file was
    ingested at another size: it is rejected unread. `rejected_size` is the size it was rejected at before, if ever.
    `contents` are those that rows of the file were read from; unless `seen`, the file is read to know whether it has
    one of them still. Of a `whole` file nothing else is left to do. `pruned` are
    contents that were all in when a file of this path went away; they count while nothing newer is recorded of it.
    """

    landed: LandedFile
    spec: LandingSpec
    windows: tuple[Window, ...] | None = None
    done: tuple[Window, ...] = ()
    spans: tuple[Span, ...] = ()
    ingested_size: int | None = None
    rejected_size: int | None = None
    whole: bool = False
    contents: tuple[int, ...] = ()
    seen: bool = False
    pruned: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal work item."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> IngestWork:
        """Return the work item that `to_json` wrote."""
        body = json.loads(text)
        windows = body.pop("windows")
        return IngestWork(
            landed=LandedFile(**body.pop("landed")),
            spec=LandingSpec.from_json(json.dumps(body.pop("spec"))),
            windows=None if windows is None else tuple(windows),
            done=tuple(body.pop("done")),
            spans=tuple((start, seconds) for start, seconds in body.pop("spans")),
            contents=tuple(body.pop("contents")),
            pruned=tuple(body.pop("pruned")),
            **body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What one work item gives to the commit: `actions` are its adds and its records, to be committed together.

    `rows_in` counts the rows and rejected lines of the whole file, `rows_out` the rows written, `windows` all windows
    in which the file has rows; `rejected` counts the lines that came into quarantine now, by reason (`tally`), and
    `rejected_before` those that another run or attempt had put there; `late` the late rows of the windows that this
    item settles: those quarantined or dropped are in `rows_in` only. Without actions there is nothing to commit.
    """

    file: str
    adds: tuple[Add, ...] = ()
    txns: tuple[Txn, ...] = ()
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    windows: tuple[Window, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    rejected_before: int = 0
    quarantine_keys: tuple[str, ...] = ()
    late: LateMetrics = field(default_factory=LateMetrics)

    @property
    def actions(self) -> list[Action]:
        """The actions that must go into one commit."""
        return [*self.adds, *self.txns]

    @property
    def bytes_out(self) -> int:
        """Bytes of the splits written."""
        return sum(add.size for add in self.adds)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        body: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        body |= {"rejected": dict(self.rejected), "late": asdict(self.late)}
        body |= {"adds": write_actions(self.adds), "txns": write_actions(self.txns)}
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> IngestResult:
        """Return the result that `to_json` wrote."""
        body = json.loads(text)
        windows, keys = tuple(body.pop("windows")), tuple(body.pop("quarantine_keys"))
        return IngestResult(
            adds=read_actions(body.pop("adds"), Add, "ingest result"),
            txns=read_actions(body.pop("txns"), Txn, "ingest result"),
            windows=windows,
            quarantine_keys=keys,
            late=LateMetrics(**body.pop("late")),
            **body,
        )


_PLAIN_FIELDS = ("file", "rows_in", "rows_out", "bytes_in", "windows", "rejected_before", "quarantine_keys")

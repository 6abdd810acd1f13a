"""Convert the journals of a run into the input of the checkers.

The checkers read the calls on each key and on the append table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.chaos import journal, register, rows_kept
from tests.chaos.journal import DONE, REFUSED, UNKNOWN, Call
from tests.chaos.processes import KEYS
from tests.chaos.register import Condition, Is, Read, WithoutTag, Write, tag_of
from tests.chaos.rows_kept import Append, Look

WRITES = {"put", "patch", "delete", "reset", "gather"}


class History:
    """All calls of a run."""

    def __init__(self, folder: Path) -> None:
        self.calls = [call for path in sorted(folder.glob("*.journal")) for call in journal.read(path)]

    def done(self, *operations: str) -> list[Call]:
        """Return the calls of these kinds that succeeded."""
        return [each for each in self.calls if each.said["op"] in operations and each.outcome == DONE]

    def judge(self) -> None:
        """Raise `AssertionError` if the recorded calls do not explain the result of a read."""
        reads = {key: self._reads(key) for key in KEYS}
        for key in KEYS:
            wrong = register.unexplained(self._writes(key), reads[key])
            assert wrong is None, f"key {key}: {wrong}"
        wrong = rows_kept.unexplained(self._appends(), self._looks())
        assert wrong is None, f"the append table: {wrong}"

    def told(self) -> str:
        """Return the number of calls of each kind, by outcome."""
        kinds = sorted({each.said["op"] for each in self.calls})
        counted = {
            kind: [
                sum(each.said["op"] == kind and each.outcome == outcome for each in self.calls)
                for outcome in (DONE, UNKNOWN, REFUSED)
            ]
            for kind in kinds
        }
        return ", ".join(f"{kind} {'/'.join(map(str, counts))}" for kind, counts in counted.items())

    def _writes(self, key: str) -> list[Write]:
        claims = [(each.found, each.ended) for each in self.done("claim") if each.ended is not None]
        return [
            Write(
                name=f"{each.name} of epoch {each.said['epoch']}",
                operation="put" if each.said["op"] == "gather" else each.said["op"],
                value=each.said["value"],
                begun=each.begun,
                ended=each.ended if each.outcome == DONE else None,
                latest=min((ended for epoch, ended in claims if epoch > each.said["epoch"]), default=None),
            )
            for each in self.calls
            if each.said["op"] in WRITES and key in each.said["keys"] and _may_have_written(each)
        ]

    def _reads(self, key: str) -> list[Read]:
        return [
            Read(
                session=f"{each.said['session']} {each.said['level']} {each.said['way']}",
                since=self._since(each),
                begun=each.begun,
                ended=each.ended,
                found=found,
            )
            for each in self.done("read")
            if each.ended is not None and (found := _condition(each, key)) is not None
        ]

    def _since(self, read: Call) -> int:
        """Return the time of the oldest state that the read may return."""
        before = [each for each in self.done("flush", "merge") if each.ended is not None and each.ended < read.begun]
        flushes = [each for each in before if each.said["op"] == "flush" and each.found is not None]
        match read.said["level"]:
            case "latest":
                return read.begun
            case "committed":
                return max((each.begun for each in flushes), default=0)
            case _:
                merged = [last for each in before if each.said["op"] == "merge" for last in each.found.values()]
                covered = [each.begun for each in flushes if each.found <= max(merged, default=0)]
                return max(covered, default=0)

    def _appends(self) -> list[Append]:
        return [
            Append(
                name=each.name,
                rows=tuple(each.said["rows"]),
                begun=each.begun,
                ended=each.ended if each.outcome == DONE else None,
                refused=each.outcome == REFUSED,
            )
            for each in self.calls
            if each.said["op"] == "append"
        ]

    def _looks(self) -> list[Look]:
        return [
            Look(session=each.said["session"], begun=each.begun, ended=each.ended, rows=tuple(each.found))
            for each in self.done("look")
            if each.ended is not None
        ]


def _may_have_written(call: Call) -> bool:
    """Return True if rows of the call may exist.

    A rejected `gather` may have written the rows before the rejected row.
    """
    return call.outcome != REFUSED or call.said["op"] == "gather"


def _condition(read: Call, key: str) -> Condition | None:
    """Return the content that the read found for the key, or None if the read did not request the key."""
    if key not in read.said.get("keys", KEYS):
        return None
    rows: Sequence[list[object]] = read.found
    found = [row for row in rows if row[0] == key]
    assert len(found) <= 1, f"{read.name}: key {key} is there twice: {found}"
    if not found:
        return WithoutTag(read.said["tag"]) if "tag" in read.said else Is(None)
    _, a, b, tag = found[0]
    assert a is None or isinstance(a, int)
    assert b is None or isinstance(b, int)
    assert tag == tag_of(a), f"{read.name}: parts of two rows: {found}"
    return Is((a, b))

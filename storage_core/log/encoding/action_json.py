"""Actions inside other JSON: work items and their results carry them as version files do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from storage_core.errors import Corrupt
from storage_core.log.actions import Action, from_json_object, to_json_object

Kind = TypeVar("Kind", bound=Action)


def write_actions(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """Return the JSON objects from which `read_actions` makes equal actions, in the same order."""
    return [to_json_object(action) for action in actions]


def read_actions(lines: Iterable[Mapping[str, Any]], kind: type[Kind], where: str) -> tuple[Kind, ...]:
    """Return the actions that `write_actions` wrote, all of one kind; `where` names the carrier for the error.

    Raises `Corrupt` for an action of another kind, and what `from_json_object` raises.
    """
    return tuple(read_action(line, kind, where) for line in lines)


def read_action(line: Mapping[str, Any], kind: type[Kind], where: str) -> Kind:
    """Return the one action of this kind that `to_json_object` wrote. Raises as `read_actions` does."""
    action = from_json_object(line, where)
    if not isinstance(action, kind):
        raise Corrupt(f"{where}: expected an action {kind.NAME!r}, found {action.NAME!r}", where=where)
    return action

"""Which keys an action keeps alive, and which it lets go (docs/architecture/collection.md, "Roots").

The walk visits every field of every action, nested values included, so a field added tomorrow is visited before
anybody remembers this module. What does not keep its object is the closed list `NOT_KEEPING`, and a test holds
both against the actions by reflection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from storage_core.errors import Unsupported
from storage_core.formats.keys import KeyKind, parse
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Translation,
    Txn,
)

ALL_FIELDS = "*"

# Fields whose text may look like a key and still keeps nothing, each with the reason.
NOT_KEEPING: Mapping[tuple[type[Action], str], str] = {
    (CommitInfo, ALL_FIELDS): "tells what happened; its text and metrics are no reference",
    (Protocol, ALL_FIELDS): "names features",
    (Remove, ALL_FIELDS): "lets its split go",
    (RemoveIndexSegment, ALL_FIELDS): "lets its segment go",
    (MergeSkip, ALL_FIELDS): "speaks about a split that its own add keeps",
    (Txn, ALL_FIELDS): "application ids are text of the applications, landed paths among them",
    (RemoveTxn, ALL_FIELDS): "names a transaction as its txn does",
    (Fence, ALL_FIELDS): "names a resource, not an object",
    (MergedGenerations, ALL_FIELDS): "names a region; its generations are found through its manifest",
    (IndexSegment, "covers"): "a segment over a removed split must not keep the split",
    (IndexSegment, "origins"): "says where rows of a split came from, and must not keep that",
    (IndexSegment, "coveredOrigins"): "says where rows of splits came from, and must not keep those",
    (Translation, "inputs"): "splits that are gone, or kept by adds of their own",
    (Translation, "outputs"): "kept by adds of their own",
    (RemoveTranslation, ALL_FIELDS): "lets its translation go",
}


def named_keys(action: Action) -> Iterator[str]:
    """Yield every key that keeps its object while this action is part of a retained version.

    Raises `Unsupported` for a split, segment or translation whose path is not a key of ours: nobody can tell which
    object it means, so nothing may be deleted beside it (lessons 42 and 80).
    """
    _require_own_path(action)
    if (type(action), ALL_FIELDS) in NOT_KEEPING:
        return
    for each in fields(action):
        if (type(action), each.name) not in NOT_KEEPING:
            yield from _keys_in(getattr(action, each.name))


def removed_keys(action: Action) -> Iterator[str]:
    """Yield the key of the split, segment or translation that this action removes."""
    match action:
        case Remove() | RemoveIndexSegment() | RemoveTranslation():
            yield action.path
        case _:
            return


def _keys_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if parse(value) is not None:
            yield value
    elif isinstance(value, Mapping):
        for name, nested in value.items():
            yield from _keys_in(name)
            yield from _keys_in(nested)
    elif isinstance(value, Sequence):
        for nested in value:
            yield from _keys_in(nested)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _keys_in(getattr(value, each.name))


def _require_own_path(action: Action) -> None:
    match action:
        case Add():
            expected = KeyKind.SPLIT
        case IndexSegment():
            expected = KeyKind.SEGMENT
        case Translation():
            expected = KeyKind.TRANSLATION
        case _:
            return
    parsed = parse(action.path)
    if parsed is None or parsed.kind is not expected:
        raise Unsupported(
            f"{action.path!r} is live, but is not the key of a {expected} of this release; nothing is collected here",
            path=action.path,
        )

"""The walk over actions visits every field that can hold a key (lesson 42)."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import pytest

from storage_core.base.errors import Unsupported
from storage_core.data.formats import keys
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Translation,
    Txn,
)
from storage_core.maintain.table_objects import ALL_FIELDS, NOT_KEEPING, named_keys

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SPLIT = keys.split_key(None, False, ID)
SEGMENT = keys.segment_key("words", ID)
TRANSLATION = keys.translation_key(ID)
PLANTED = keys.split_key(3600, True, "7c9e6679-7425-40de-944b-e07fc1f90ae7")
OWN_PATHS: Mapping[type[Action], str] = {Add: SPLIT, IndexSegment: SEGMENT, Translation: TRANSLATION}


def can_hold_text(annotation: Any) -> bool:
    if annotation is str or annotation is Any:
        return True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return any(can_hold_text(part) for part in typing.get_args(annotation))
    return False


def fields_that_can_hold_a_key() -> list[tuple[type[Action], str, Any]]:
    found = []
    for kind in typing.get_args(Action):
        hints = typing.get_type_hints(kind)
        found += [(kind, each.name, hints[each.name]) for each in fields(kind) if can_hold_text(hints[each.name])]
    return found


def planted(annotation: Any) -> list[object]:
    """Return values of the type `annotation` that contain `PLANTED`, at each level at which the type allows texts."""
    text = str(annotation)
    if "Mapping" in text:
        values: list[object] = [{"name": PLANTED}]
        return [*values, {"nested": {"list": [1, {"key": PLANTED}]}}, {PLANTED: 1}] if "Any" in text else values
    return [("other", PLANTED)] if "tuple" in text else [PLANTED]


def action_with(kind: type[Action], name: str, value: object) -> Action:
    values: dict[str, Any] = {
        each.name: 1 if "int" in str(each.type) else "text"
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    }
    if kind in OWN_PATHS:
        values["path"] = OWN_PATHS[kind]
    values |= {each.name: () for each in fields(kind) if each.name in values and str(each.type).startswith("tuple")}
    return kind(**(values | {name: value}))


@pytest.mark.parametrize(
    ("kind", "name", "annotation"),
    fields_that_can_hold_a_key(),
    ids=lambda each: each.__name__ if isinstance(each, type) else str(each)[:30],
)
def test_every_field_that_can_hold_a_key_keeps_it_or_is_listed_with_a_reason(
    kind: type[Action], name: str, annotation: Any
) -> None:
    keeps = (kind, name) not in NOT_KEEPING and (kind, ALL_FIELDS) not in NOT_KEEPING
    for value in planted(annotation):
        if name == "path" and kind in (IndexSegment, Translation):
            assert OWN_PATHS[kind] in set(named_keys(action_with(kind, name, OWN_PATHS[kind])))
        else:
            assert (PLANTED in set(named_keys(action_with(kind, name, value)))) is keeps


def test_the_fields_that_keep_nothing_are_these_and_no_others() -> None:
    leaving = {Remove, RemoveIndexSegment, RemoveTranslation, RemoveTxn}
    whole = {CommitInfo, Protocol, MergeSkip, Txn, Fence, MergedGenerations, *leaving}
    covered = {(IndexSegment, name) for name in ("covers", "origins", "coveredOrigins")}
    moved = {(Translation, "inputs"), (Translation, "outputs")}
    assert set(NOT_KEEPING) == {*((kind, ALL_FIELDS) for kind in whole), *covered, *moved}
    assert set(typing.get_args(Action)) - whole == {Add, IndexSegment, Metadata, Translation}


@pytest.mark.parametrize(
    "path",
    [
        "part-0001.split",
        f"/{SPLIT}",
        f"{SPLIT}/",
        f"file:///table/{SPLIT}",
        f"./{SPLIT}",
        "splits%2Fall/x.parquet",
        SEGMENT,
    ],
)
def test_a_live_split_whose_path_is_not_our_key_stops_the_collection(path: str) -> None:
    with pytest.raises(Unsupported, match="Nothing is collected"):
        list(named_keys(Add(path=path, size=1, modificationTime=1)))

from __future__ import annotations

import json

import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.log.actions import Add, Remove, read_action, read_actions, to_json_object, write_actions
from tests.support.log_tables import removal, split


def test_actions_travel_in_their_order() -> None:
    adds = (split("b", 2), split("a"))
    assert read_actions(json.loads(json.dumps(write_actions(adds))), Add, "here") == adds
    assert read_actions([], Remove, "here") == ()


def test_an_action_of_another_kind_is_corrupt_and_is_never_dropped() -> None:
    lines = write_actions([split("a"), removal("b")])
    with pytest.raises(Corrupt, match=r"here: expected an action 'add', found 'remove'"):
        read_actions(lines, Add, "here")
    with pytest.raises(Corrupt, match="expected an action 'remove'"):
        read_action(to_json_object(split("a")), Remove, "here")


def test_an_action_of_a_newer_release_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="here"):
        read_action({"tomorrow": {}}, Add, "here")

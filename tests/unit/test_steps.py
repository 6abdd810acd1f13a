"""Each entry in the list of steps has a module and explained options, and refers only to existing things."""

from __future__ import annotations

import importlib
from dataclasses import fields

import pytest

from assets.steps import steps_of
from pipelines.cli import build
from storage_core.change.declaration import TableDeclaration
from storage_core.change.declaration_parts import ScheduleDeclaration
from storage_core.data.steps import (
    STEP_OF,
    STEPS,
    TABLE_STEPS,
    Compact,
    LeasedOptions,
    Sort,
    Step,
    described,
    options_for,
    step_of,
)

EVERYTHING = {
    "name": "all",
    "uri": "warehouse/all",
    "columns": {"id": "long!", "at": "timestamp!", "text": "string"},
    "time_column": "at",
    "window": "1h",
    "primary_key": ["id", "at"],
    "retention": "90d",
    "indexes": [{"name": "words", "kind": "fulltext", "columns": ["text"]}],
    "publish": ["delta"],
}


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_a_step_has_a_module_that_runs_it_and_says_when_it_is_due(step: Step) -> None:
    home = importlib.import_module(step.home)
    assert callable(getattr(home, f"run_{step.name}"))
    assert hasattr(home, f"due_{step.name}") == step.is_observable


def test_a_step_follows_steps_before_it_and_no_two_share_a_name_or_options() -> None:
    names = list(STEPS)
    assert all(names.index(each) < names.index(step.name) for step in STEPS.values() for each in step.follows)
    assert len(STEP_OF) == len(STEPS)
    for attribute in ("asset", "command"):
        given = [value for step in STEPS.values() if (value := getattr(step, attribute))]
        assert len(given) == len(set(given)), attribute


def test_a_step_that_takes_a_lease_can_wait_for_it() -> None:
    waits = {step.name for step in TABLE_STEPS if issubclass(step.options, LeasedOptions)}
    assert waits == {step.name for step in TABLE_STEPS if step.lease}


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_every_option_is_explained(step: Step) -> None:
    assert {each.name for each in described(step.options)} == {each.name for each in fields(step.options)}
    assert [each.name for each in described(step.options) if not each.about.help.endswith(".")] == []


def test_every_step_of_a_table_has_a_schedule_in_its_declaration() -> None:
    usual = ScheduleDeclaration()
    assert {step.name: usual.cron_of(step.name) for step in TABLE_STEPS} == {
        step.name: step.cron for step in TABLE_STEPS
    }


def test_commands_are_made_of_the_entries() -> None:
    commands = {each.name for each in build().registered_commands}
    assert {step.command for step in STEPS.values() if step.command} <= commands


def test_options_for_a_step_are_those_that_it_has() -> None:
    assert options_for("sort", table_uri="t", index="words", most_bytes=1) == Sort(table_uri="t")
    assert options_for("compact", table_uri="t", index="words", most_bytes=1) == Compact(table_uri="t", most_bytes=1)
    assert step_of(Sort(table_uri="t")).name == "sort"


def test_the_assets_of_a_table_follow_those_that_it_has() -> None:
    found = {each.name: each.after for each in steps_of(TableDeclaration.model_validate(EVERYTHING))}
    assert found == {
        "merged": (),
        "sorted": ("merged",),
        "expired": ("merged",),
        "compacted": ("merged", "expired"),
        "checkpointed": ("compacted",),
        "index_words": ("compacted",),
        "published": ("compacted",),
        "collected": ("checkpointed", "index_words", "published"),
    }

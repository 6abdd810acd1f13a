from __future__ import annotations

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import LateData, TableConfig

FULL = TableConfig(
    time_column="at",
    sort_schema="service|timestamp/V2",
    window_seconds=900,
    primary_key=("id", "at"),
    indexes=(
        IndexDefinition("words", "fulltext", ("text", "agent"), {"tokenizer": "raw"}),
        IndexDefinition("by_status", "bitmap", ("status",)),
    ),
    target_split_bytes=1024,
    checkpoint_interval=0,
    gc_horizon_ms=5,
    version_retention_ms=6,
    late_data=LateData(policy="drop", acceptance_ms=7),
)


def test_a_configuration_survives_its_text_form() -> None:
    assert TableConfig.from_configuration(FULL.to_configuration()) == FULL
    assert list(FULL.to_configuration()) == [
        "tidemark.timeColumn",
        "tidemark.sortSchema",
        "tidemark.windowSeconds",
        "tidemark.targetSplitBytes",
        "tidemark.checkpointInterval",
        "tidemark.gcHorizonMs",
        "tidemark.versionRetentionMs",
        "tidemark.primaryKey",
        "tidemark.lateData",
        "tidemark.index.words",
        "tidemark.index.by_status",
    ]


def test_defaults_are_not_stored() -> None:
    assert TableConfig().to_configuration() == {}
    assert TableConfig.from_configuration({}) == TableConfig()


def test_settings_of_others_and_of_later_releases_are_left_alone() -> None:
    found = TableConfig.from_configuration({"tidemark.later": "x", "docMappingSchema.abc": "[]", "owner": "me"})
    assert found == TableConfig()


def test_a_table_with_a_primary_key_is_keyed() -> None:
    assert FULL.kind == "keyed"
    assert TableConfig().kind == "append"


def test_an_index_is_found_by_its_name() -> None:
    assert FULL.index("by_status") == FULL.indexes[1]
    assert FULL.index("other") is None


@pytest.mark.parametrize(
    ("configuration", "named"),
    [
        ({"tidemark.windowSeconds": "15m"}, "tidemark.windowSeconds"),
        ({"tidemark.windowSeconds": "0"}, "window is 0s"),
        ({"tidemark.targetSplitBytes": "0"}, "splits.target_size is 0"),
        ({"tidemark.checkpointInterval": "-1"}, "checkpoint.interval is -1"),
        ({"tidemark.primaryKey": "id"}, "tidemark.primaryKey"),
        ({"tidemark.primaryKey": '{"a": 1}'}, "tidemark.primaryKey"),
        ({"tidemark.primaryKey": '["a", "a"]'}, "column a is declared twice"),
        ({"tidemark.lateData": '{"policy": "drop"}'}, "tidemark.lateData"),
        ({"tidemark.lateData": '{"policy": "hold", "acceptanceWindowMs": 1}'}, "hold"),
        ({"tidemark.lateData": '{"policy": "drop", "acceptanceWindowMs": -1}'}, "acceptance_window is -1ms"),
        (
            {"tidemark.lateData": '{"policy": "drop", "acceptanceWindowMs": 3599999996400001}'},
            "Give 999999999h or less",
        ),
        ({"tidemark.index.words": "[]"}, "tidemark.index.words"),
        ({"tidemark.index.words": '{"kind": "graph", "columns": ["a"]}'}, "graph"),
        ({"tidemark.index.words": '{"kind": "bitmap", "columns": []}'}, "covers no column"),
        ({"tidemark.index.words": '{"kind": "bitmap", "columns": ["a"], "options": 1}'}, "tidemark.index.words"),
        ({"tidemark.index.a/b": '{"kind": "bitmap", "columns": ["a"]}'}, "a/b"),
    ],
)
def test_a_bad_setting_is_refused_by_name(configuration: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        TableConfig.from_configuration(configuration)


def test_two_indexes_of_one_name_are_refused() -> None:
    index = IndexDefinition("words", "bitmap", ("a",))
    with pytest.raises(InvalidInput, match="words"):
        TableConfig(indexes=(index, index))


def test_the_columns_of_an_index_are_not_one_text() -> None:
    with pytest.raises(InvalidInput, match=r"index 'words': columns is 'text'\. Give a tuple of names"):
        IndexDefinition("words", "fulltext", "text")  # type: ignore[arg-type]  # the mistake of a caller

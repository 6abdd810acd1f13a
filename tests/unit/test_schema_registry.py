"""Golden values of docs/architecture/reference-values.md."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from storage_core.log.codec import canonical, registry, schema_hash, with_registry

ID_AND_TEXT = (
    '{"fast":true,"indexed":true,"name":"id","stored":true,"type":"i64"},'
    '{"fast":true,"indexed":true,"name":"text","stored":true,"tokenizer":"raw","type":"text"}'
)
SCORE = '{"fast":true,"indexed":true,"name":"score","stored":true,"type":"f64"}'
GOLDEN = [
    (f"[{ID_AND_TEXT}]", "gC45RGOqJ_Grt0xH"),
    (f"[{ID_AND_TEXT},{SCORE}]", "z7TwwZ-tDWGD-uX5"),
    ('{"a":1,"b":2}', "QyWM_3g_5wNtikMD"),
    ('{"test":"value"}', "-Yvhbr-oYcs5ph-v"),
]


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_the_hash_of_a_schema_is_the_one_that_is_out_there(text: str, expected: str) -> None:
    assert schema_hash(text) == expected


@pytest.mark.parametrize(("text", "expected"), GOLDEN)
def test_spelling_does_not_change_the_hash(text: str, expected: str) -> None:
    value = json.loads(text)
    respelled = list(reversed(value)) if isinstance(value, list) else dict(reversed(value.items()))
    assert schema_hash(json.dumps(respelled, indent=2)) == expected


def test_named_objects_are_sorted_stably_and_other_arrays_keep_their_order() -> None:
    assert canonical('[{"name":"b"},{"name":"a","x":2},{"name":"a","x":1}]') == (
        '[{"name":"a","x":2},{"name":"a","x":1},{"name":"b"}]'
    )
    assert canonical('[{"name":"b"},{"x":1}]') == '[{"name":"b"},{"x":1}]'
    assert canonical("[3,1,2]") == "[3,1,2]"
    assert canonical('{"k":["ü"]}') == '{"k":["ü"]}'


def test_text_that_is_not_json_is_hashed_as_it_is() -> None:
    raw = base64.urlsafe_b64encode(hashlib.sha256(b"{not json").digest()).decode()[:16]
    assert schema_hash("{not json") == raw


def test_a_registry_beside_the_configuration_completes_it() -> None:
    found = with_registry({"docMappingSchema.a": "kept", "x": "y"}, {"a": "other", "docMappingSchema.b": "new"})
    assert found == {"docMappingSchema.a": "kept", "docMappingSchema.b": "new", "x": "y"}
    assert registry(found) == {"a": "kept", "b": "new"}

"""A number in a landed JSON line keeps the digits of its source, at any position and next to any other values."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.landing import LandedFile, LandingSpec
from tests.support.scale import scaled

# The source of a line, and the expected text after the line is read.
Written = tuple[str, str]

NAMES = ["a", "b-", "\xe9", 'x"', "back\\", ":1.10,", "0.10"]
SCHEMA = pa.schema([(name, pa.string()) for name in NAMES])
LINES = 20

digits = st.text("0123456789", min_size=1, max_size=20)
whole = st.just("0") | st.builds(lambda first, rest: first + rest, st.sampled_from("123456789"), digits)
short_or_whole = st.sampled_from(["0", "1", "10", "100"]) | whole
fraction = st.just("") | st.sampled_from([".0", ".00", ".10", ".000", ".0000001"]) | digits.map(lambda text: "." + text)
exponent = st.sampled_from(["", "", "", "e5", "E-3", "e+10", "E0", "e400"])
numbers = st.builds(lambda *parts: "".join(parts), st.sampled_from(["", "-"]), short_or_whole, fraction, exponent)
texts = st.one_of(
    st.text('ab\\"/:,[]{} 0.1\xe9', max_size=12),
    st.sampled_from(['x": 1.10, ', ":1.10,", "[1.10]", 'a":-0}', "1.10", '"1.10"', '\\"a": 0.10']),
)
spaces = st.sampled_from(["", "", " ", "  ", "\t"])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _array(items: list[Written], gap: str) -> Written:
    return (
        f"[{gap}{f'{gap},{gap}'.join(source for source, _ in items)}{gap}]",
        f"[{','.join(text for _, text in items)}]",
    )


def _object(items: list[tuple[str, Written]], gap: str) -> Written:
    sources = f"{gap},{gap}".join(f"{_quoted(name)}{gap}:{gap}{source}" for name, (source, _) in items)
    return f"{{{gap}{sources}{gap}}}", "{" + ",".join(f"{_quoted(name)}:{text}" for name, (_, text) in items) + "}"


atoms = numbers.map(lambda text: (text, text)) | texts.map(lambda text: (_quoted(text), _quoted(text)))
inner = st.recursive(
    atoms,
    lambda each: (
        st.builds(_array, st.lists(each, max_size=4), spaces)
        | st.builds(_object, st.lists(st.tuples(texts, each), max_size=4, unique_by=lambda item: item[0]), spaces)
    ),
    max_leaves=8,
)
nested = st.builds(_array, st.lists(inner, max_size=4), spaces) | st.builds(
    _object, st.lists(st.tuples(texts, inner), max_size=4, unique_by=lambda item: item[0]), spaces
)
values = numbers.map(lambda text: (text, text)) | texts.map(lambda text: (_quoted(text), text)) | nested
rows = st.tuples(st.dictionaries(st.sampled_from(NAMES), values), spaces)


@settings(max_examples=scaled(50), deadline=None)
@given(written=st.lists(rows, min_size=1, max_size=LINES))
def test_a_number_has_the_digits_that_were_written(written: list[tuple[dict[str, Written], str]]) -> None:
    data = "\n".join(_object([*row.items()], gap)[0] for row, gap in written).encode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.ndjson").write_bytes(data)
        spec = LandingSpec(uri=folder, format="ndjson")
        found = parse_file(LandedFile("a.ndjson", len(data), folder), spec, SCHEMA, None)
    assert not found.rejected
    expected = [{name: row[name][1] if name in row else None for name in NAMES} for row, _ in written]
    assert found.rows.to_pylist() == expected

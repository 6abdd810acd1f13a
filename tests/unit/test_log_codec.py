from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported
from storage_core.log import codec
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
from storage_core.log.deletion_vector import inline

WHERE = "_transaction_log/00000000000000000007.json"
EVERY_ACTION: list[Action] = [
    CommitInfo(commitId="c", operation="TEST", timestamp=5, jobRunId="r", metrics={"rows": 1}),
    Protocol(readerFeatures=("tidemark",), writerFeatures=()),
    Metadata(id="t", schemaString="{}", partitionColumns=("day",), configuration={"k": "ü"}, createdTime=1),
    Add(
        path="splits/a.parquet", size=1, modificationTime=2, splitTags=("x",), nullCounts={"a": 0},
        columnRegexes={"a": "^é$"},
        deletionVector=inline([0, 5]),
    ),
    Remove(path="splits/b.parquet", deletionTimestamp=3),
    MergeSkip(path="splits/c.parquet", skipTimestamp=1, reason="r", operation="compact"),
    Txn(appId="landed:a", version=3, lastUpdated=9),
    Fence(resource="table", token=2),
    MergedGenerations(region="r", generation=4),
    IndexSegment(
        index="i", kind="bitmap", path="_indices/i/s.seg", covers=("a", "b"), size=1, xxh3="0", footerOffset=0,
        numRecords=2, details={"terms": 3},
    ),
    IndexSegment(
        index="i", kind="bitmap", path="_indices/i/p.seg", covers=("o",), size=1, xxh3="0", footerOffset=0,
        numRecords=2, origins=("a",),
    ),
    IndexSegment(
        index="i", kind="bitmap", path="_indices/i/m.seg", covers=("o", "p"), size=1, xxh3="0", footerOffset=0,
        numRecords=5, coveredRows=(2, 3), coveredOrigins=(("a",), ()),
    ),
    RemoveIndexSegment(index="i", path="_indices/i/t.seg"),
    Translation(
        path="_indices/_translations/m.map", inputs=("a", "b"), inputRows=(3, 2), outputs=("o",), movedRows=(2, 2),
        size=9, xxh3="0", footerOffset=5,
    ),
    RemoveTranslation(path="_indices/_translations/n.map"),
    RemoveTxn(appId="landed:a"),
]  # fmt: skip


def test_every_action_survives_the_version_file() -> None:
    assert codec.decode_version(codec.encode_version(EVERY_ACTION), WHERE) == EVERY_ACTION


def test_the_bytes_of_a_version_carry_no_time() -> None:
    data = codec.encode_version(EVERY_ACTION)
    assert data == codec.encode_version(EVERY_ACTION)
    assert data[:2] == b"\x1f\x8b"
    assert data[4:8] == bytes(4)


@pytest.mark.parametrize("dialect", ["plain", "gzip", "doubled", "two members"])
def test_every_dialect_that_is_out_there_is_read(dialect: str) -> None:
    plain = gzip.decompress(codec.encode_version(EVERY_ACTION))
    middle = plain.index(b"\n") + 1
    data = {
        "plain": plain + b"\n  \n",
        "gzip": gzip.compress(plain),
        "doubled": b"\x01\x01" + gzip.compress(plain),
        "two members": gzip.compress(plain[:middle]) + gzip.compress(plain[middle:]),
    }[dialect]
    assert codec.decode_version(data, WHERE) == EVERY_ACTION


def test_unknown_fields_are_ignored_and_null_feature_lists_are_read() -> None:
    line = {"protocol": {"minReaderVersion": 4, "minWriterVersion": 4, "readerFeatures": None, "later": 1}}
    assert codec.decode_version(json.dumps(line).encode(), WHERE) == [Protocol()]


def test_an_unknown_action_is_refused_with_its_name_and_line() -> None:
    with pytest.raises(Unsupported, match=r"07\.json, line 2: unknown action 'vacuum'"):
        codec.decode_version(b'{"txn":{"appId":"a","version":1}}\n{"vacuum":{}}\n', WHERE)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'{"txn":', "line 1: not JSON"),
        (b"[]", "line 1: expected a JSON object"),
        (b'{"txn":{"appId":"a","version":1},"fence":{}}', "one action per line"),
        (b'{"txn":{"appId":"a"}}', "incomplete"),
        (b'{"txn":{"appId":"a","version":"1"}}', "txn.version is '1'. Expected int"),
        (b'{"txn":{"appId":"a","version":true}}', "txn.version is True. Expected int"),
        (b'{"add":{"path":"../x","size":1,"modificationTime":1}}', r"'\.\./x' leads out of the table"),
        (b'{"add":{"path":"/etc/x","size":1,"modificationTime":1}}', "leads out of the table"),
        (b'{"remove":{"path":"s3://other/x"}}', "leads out of the table"),
        (b'{"remove":{"path":"a\\u0000b"}}', "leads out of the table"),
        (b"\xff\xfe", "expected UTF-8 or gzip"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_damage_is_named_by_key_and_line(text: bytes, named: str) -> None:
    with pytest.raises(Corrupt, match=named) as caught:
        codec.decode_version(text, WHERE)
    assert WHERE in str(caught.value)


def test_a_version_file_that_was_doubled_is_refused_and_not_applied_twice() -> None:
    data = codec.encode_version(EVERY_ACTION)
    with pytest.raises(Corrupt, match=r"07\.json: 2 commits in one file"):
        codec.decode_version(data + data, WHERE)


def test_a_commit_that_says_its_number_says_it_first() -> None:
    info, *rest = EVERY_ACTION
    assert isinstance(info, CommitInfo)
    late = codec.encode_version([*rest, replace(info, version=7)])
    with pytest.raises(Corrupt, match=r"07\.json: expected `commitInfo` first"):
        codec.decode_version(late, WHERE)
    theirs = [*rest, info]
    assert codec.decode_version(codec.encode_version(theirs), WHERE) == theirs


def test_a_torn_gzip_is_corrupt_wherever_it_is_cut() -> None:
    data = codec.encode_version(EVERY_ACTION)
    for end in range(2, len(data)):
        with pytest.raises(Corrupt):
            codec.decode_version(data[:end], WHERE)


def test_content_that_expands_beyond_the_cap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_EXPANDED_BYTES", 1000)
    with pytest.raises(Corrupt, match="expands to more than 1000 bytes"):
        codec.decode_version(gzip.compress(b" " * 1001), WHERE)
    assert codec.decode_version(gzip.compress(b" " * 1000), WHERE) == []


def test_metrics_that_json_cannot_say_are_refused() -> None:
    assert isinstance(EVERY_ACTION[0], CommitInfo)
    with pytest.raises(InvalidInput, match="commitInfo"):
        codec.encode_version([replace(EVERY_ACTION[0], metrics={"ratio": float("nan")})])

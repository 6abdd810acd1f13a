"""The capability probe refuses a store and names the missing capability. The probe runs only once per store."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.errors import Unavailable, Unsupported
from storage_core.data.formats.keys import probe_key
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import Capability, open_store, probe
from storage_core.table import Table
from tests.support.s3_server import CONDITIONS, Answer, HttpFault, S3Server

SCHEMA = pa.schema([("a", pa.int64())])
ROWS = [{"a": 1}]

CREATE_ONLY, SWAP_FRESH, SWAP_STALE, METADATA, LIST, DELETE = Capability
WRITE_ID_HEADER = "x-amz-meta-tidemark-write-id"
NOTHING_LISTED = Answer(200, body=b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"probe/{uuid4()}")


def a_key() -> str:
    return probe_key(str(uuid4()))


@pytest.mark.parametrize("place", ["local", "memory", "s3"])
def test_a_store_that_keeps_the_contract_has_every_capability_and_is_left_empty(
    place: str, uri: str, tmp_path: Path
) -> None:
    uris = {"local": str(tmp_path), "memory": f"memory://probe/{uuid4()}", "s3": uri}
    store = MeteredStore(open_store(uris[place]))
    found = probe(store, a_key())
    assert [(each.capability, each.ok) for each in found.trials] == [(each, True) for each in Capability]
    assert found.missing == ()
    found.require()
    assert store.requests == {"get": 0, "put": 4, "list": 1, "head": int(place == "s3"), "delete": 2}
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("ignored", "missing"),
    [
        (CONDITIONS, [CREATE_ONLY, SWAP_STALE]),
        (("If-None-Match",), [CREATE_ONLY]),
        (("If-Match",), [SWAP_STALE]),
        ((WRITE_ID_HEADER,), [METADATA]),
    ],
)
def test_a_server_that_ignores_conditions_is_refused_by_the_name_of_what_it_lacks(
    s3_server: S3Server, uri: str, ignored: tuple[str, ...], missing: list[Capability]
) -> None:
    s3_server.front.ignore(*ignored)
    found = probe(open_store(uri), a_key())
    assert [each.capability for each in found.missing] == missing
    with pytest.raises(Unsupported) as refused:
        found.require()
    assert refused.value.context["missing"] == [str(each) for each in missing]
    assert all(each in str(refused.value) for each in missing)
    assert list(open_store(uri).list("")) == []


def test_a_server_that_does_not_implement_conditions_is_refused(s3_server: S3Server, uri: str) -> None:
    s3_server.front.on("put", "/_probe/", *[Answer(501, "NotImplemented")] * 4)
    assert [each.capability for each in probe(open_store(uri), a_key()).missing] == [
        CREATE_ONLY,
        SWAP_FRESH,
        METADATA,
        LIST,
    ]


def test_a_listing_without_what_was_written_is_refused(s3_server: S3Server, uri: str) -> None:
    s3_server.front.on("list", "", NOTHING_LISTED)
    assert [each.capability for each in probe(open_store(uri), a_key()).missing] == [LIST]


def test_a_delete_that_is_denied_is_refused_with_the_reason(s3_server: S3Server, uri: str) -> None:
    s3_server.front.on("delete", "", Answer(403, "AccessDenied"))
    (missing,) = probe(open_store(uri), a_key()).missing
    assert missing.capability is DELETE
    assert "403 AccessDenied" in missing.found


def test_a_store_that_answers_a_put_without_an_etag_is_proven_by_looking(s3_server: S3Server, uri: str) -> None:
    s3_server.front.on(
        "put", "/_probe/", Answer(200, body=b"", applied=True), Answer(200, body=b"<html>", applied=True)
    )
    assert [each.capability for each in probe(open_store(uri), a_key()).missing] == []


def test_a_server_that_redirects_proves_nothing_and_is_told_from_one_that_lacks_something(
    s3_server: S3Server, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Answer(307, "TemporaryRedirect", headers=(("x-amz-bucket-region", "eu-west-3"),))
    for kind in ("put", "head", "list", "delete", "get"):
        s3_server.front.on(kind, "", *[moved] * 20)
    for arguments in (["probe", uri], ["describe", uri], ["sql", uri, "select 1"]):
        assert main(arguments) == 2
        assert "region eu-west-3" in capsys.readouterr().err
    with pytest.raises(Unsupported, match="region eu-west-3"):
        Table.create(uri, SCHEMA)


def test_no_table_is_made_behind_a_front_that_drops_metadata(s3_server: S3Server, uri: str) -> None:
    s3_server.front.ignore(WRITE_ID_HEADER)
    with pytest.raises(Unsupported, match="metadata: the user metadata of a write was not returned") as refused:
        Table.create(uri, SCHEMA)
    assert refused.value.context["missing"] == ["metadata"]
    assert list(open_store(uri).list("")) == []


def test_an_append_whose_answer_has_no_etag_is_found_by_looking(s3_server: S3Server, uri: str) -> None:
    table = Table.create(uri, SCHEMA)
    s3_server.front.on("put", "/_transaction_log/", Answer(200, body=b"", applied=True))
    table.append(ROWS)
    assert Table.open(uri).version == 1
    assert Table.open(uri).scan().to_arrow().num_rows == 1


def test_what_cannot_be_found_out_is_unavailable_and_leaves_nothing(s3_server: S3Server, uri: str) -> None:
    s3_server.front.on("put", "/_probe/", HttpFault.REPLY_LOST)
    s3_server.front.on("head", "/_probe/", Answer(403, "AccessDenied"))
    with pytest.raises(Unavailable, match="had no result"):
        probe(open_store(uri), a_key())
    assert list(open_store(uri).list("")) == []


def test_no_table_is_created_on_a_store_that_ignores_conditions_and_none_is_written_to(
    s3_server: S3Server, uri: str
) -> None:
    s3_server.front.ignore(*CONDITIONS)
    with pytest.raises(Unsupported, match="create_only"):
        Table.create(uri, SCHEMA)
    assert list(open_store(uri).list("")) == []


def test_a_table_is_not_written_to_through_a_front_that_drops_conditions_but_can_be_read(
    s3_server: S3Server, uri: str
) -> None:
    Table.create(uri, SCHEMA).append(ROWS)
    s3_server.front.ignore(*CONDITIONS)
    other_name = uri.replace("127.0.0.1", "localhost")  # this process has not yet probed this second URI
    table = Table.open(other_name)
    assert table.scan().to_arrow().num_rows == 1
    with pytest.raises(Unsupported, match="create_only"):
        table.append(ROWS)
    assert Table.open(uri).version == 1


def test_the_store_is_probed_once_per_process_and_uri_and_not_for_reading(s3_server: S3Server, uri: str) -> None:
    def probed() -> int:
        return sum("/_probe/" in each.target for each in s3_server.front.seen if each.kind == "put")

    Table.create(uri, SCHEMA)
    assert probed() == 4
    for _ in range(2):
        Table.open(uri).append(ROWS)
    assert probed() == 4
    assert Table.open(uri.replace("127.0.0.1", "localhost")).scan().to_arrow().num_rows == 2
    assert probed() == 4
    Table.open(uri.replace("127.0.0.1", "localhost")).append(ROWS)
    assert probed() == 8


def test_the_command_lists_each_capability_and_fails_naming_what_is_missing(
    s3_server: S3Server, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", uri, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["capability"]: each["ok"] for each in found} == dict.fromkeys(map(str, Capability), True)
    s3_server.front.ignore("If-None-Match")
    assert main(["probe", uri]) == 2
    shown = capsys.readouterr()
    assert "a second create-only write was accepted" in shown.out
    assert "unsupported" in shown.err
    assert "create_only" in shown.err

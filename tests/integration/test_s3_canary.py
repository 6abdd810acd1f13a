"""No log line, exception, report, metadata or object of Tidemark contains a secret from the environment (lesson 85)."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.compact import execute
from storage_core.maintain.collect import collect
from storage_core.store.contract import IfAbsent, IfMatch
from storage_core.store.resolve import open_store
from storage_core.store.s3 import S3Store
from storage_core.store.s3_calls import Retries
from storage_core.store.s3_location import parse_s3_uri
from storage_core.table import Table
from tests.support import merge_plan
from tests.support.s3_server import Answer, HttpFault, S3Server, Step

KEY_CANARY = "canary0key"
SESSION_CANARY = "canary0session"
ECHO = (
    f"<Error><Code>{{}}</Code><Message>{KEY_CANARY}</Message>"
    f"<CanonicalRequest>x-amz-security-token:{SESSION_CANARY}</CanonicalRequest></Error>"
)
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
KINDS = {"get": "/k", "put": "/k", "head": "/k", "list": "list-type", "delete": "delete"}


@pytest.fixture(autouse=True)
def canary(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the server. The credentials for the server contain a secret that the tests search for."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "canary0id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY_CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION_CANARY)
    return s3_server


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"canary/{uuid4()}")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return all output of Tidemark's loggers at the most verbose level."""
    for name in ("storage_core", "jobs", "pipelines"):
        caplog.set_level(logging.DEBUG, name)

    def lines() -> str:
        ours = [each for each in caplog.records if each.name.split(".")[0] in ("storage_core", "jobs", "pipelines")]
        return "\n".join(
            f"{each.name} {each.getMessage()} {each.args} {each.exc_text} {each.exc_info}" for each in ours
        )

    return lines


def everything_about(error: BaseException) -> str:
    """Return all texts that an exception can show, including the texts of all objects attached to the exception."""
    parts = ["".join(traceback.format_exception(error))]
    seen: BaseException | None = error
    while seen is not None:
        parts += [str(seen), repr(seen), repr(seen.args), repr(vars(seen))]
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def objects(uri: str, server: S3Server) -> Iterator[str]:
    """Return every object below a prefix as the server stores it: bytes, key and metadata."""
    import boto3

    client = boto3.session.Session().client("s3", endpoint_url=server.endpoint, region_name="eu-central-1")
    prefix = parse_s3_uri(uri, {}).prefix
    for each in client.list_objects_v2(Bucket=server.bucket, Prefix=prefix)["Contents"]:
        reply = client.get_object(Bucket=server.bucket, Key=each["Key"])
        # The test server's own record of the request is not included, because it contains the name of the signer.
        yield f"{each['Key']} {reply['Metadata']} {reply['Body'].read()!r}"


def test_the_life_of_a_table_leaves_no_secret_in_it_nor_in_our_logs(
    uri: str, s3_server: S3Server, said: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.create(uri, SCHEMA)
    for start in (0, 10):
        table.append([{"a": each, "b": f"b{each}"} for each in range(start, start + 10)])
    (operation,) = merge_plan.plan(table.snapshot)
    clock, ids = SystemClock(), SystemIds()
    done = execute.execute(table.store, operation, ids=ids, now_ms=clock.now_ms())
    table.log.commit(table.snapshot, done.actions, operation="COMPACT")
    table.refresh().log.checkpoint(table.snapshot)
    collect(table.store, table.log, clock=clock, horizon_ms=0)
    assert main(["-v", "describe", uri]) == 0
    shown = capsys.readouterr()
    found = list(objects(uri, s3_server))
    assert len(found) > 5
    everything = "\n".join([*found, said(), shown.out, shown.err, repr(open_store(uri)), str(vars(table))])
    assert "committed" in said() or "created table" in said()
    assert "canary0" not in everything


def test_requests_stay_out_of_the_logs_of_a_process_that_logs_everything(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = open_store(uri)
    store.put("k", b"x", IfAbsent())
    assert store.get("k").data == b"x"
    assert caplog.records
    assert "canary0" not in "\n".join(each.getMessage() for each in caplog.records)


def test_a_process_that_shows_warnings_hears_no_more_of_boto3(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.NOTSET, "botocore")
    open_store(uri).put("k", b"x", IfAbsent())
    assert [each.getMessage() for each in caplog.records if each.name.startswith("botocore")] == []


@pytest.mark.parametrize(
    "step",
    [
        Answer(403, "SignatureDoesNotMatch", ECHO.format("SignatureDoesNotMatch").encode()),
        Answer(403, "x", ECHO.format(KEY_CANARY).encode()),
        Answer(400, "ExpiredToken", ECHO.format("ExpiredToken").encode()),
        Answer(404, "NoSuchBucket", ECHO.format("NoSuchBucket").encode()),
        Answer(412, "PreconditionFailed", ECHO.format("PreconditionFailed").encode()),
        Answer(503, "SlowDown", ECHO.format("SlowDown").encode()),
        Answer(200, body=f"<{KEY_CANARY}".encode(), headers=(("last-modified", SESSION_CANARY),)),
        Answer(
            307,
            body=f"<Error><Code>{KEY_CANARY}</Code><Region>{KEY_CANARY}</Region></Error>".encode(),
            headers=(("location", f"http://u:{KEY_CANARY}@other.example/{KEY_CANARY}?token={SESSION_CANARY}"),),
        ),
        Answer(301, "PermanentRedirect", headers=(("location", f"http://other.example/?token={SESSION_CANARY}"),)),
        HttpFault.REQUEST_LOST,
    ],
)
def test_no_failure_of_a_request_shows_a_secret(
    uri: str, s3_server: S3Server, said: Callable[[], str], step: Step
) -> None:
    retries = Retries(attempts=2, first_pause_ms=1)
    store = S3Store(parse_s3_uri(uri, {}), retries=retries)
    messages = []
    for kind, part in KINDS.items():
        s3_server.front.on(kind, part, *[step] * 20)
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.get("k"),
        lambda: store.get_range("k", 0, 1),
        lambda: store.head("k"),
        lambda: store.put("k", b"", IfAbsent()),
        lambda: store.put("k", b"", IfMatch('"x"')),
        lambda: list(store.list("")),
        lambda: store.delete(["k"]),
    )
    for call in calls:
        try:
            messages.append(repr(call()))
        except TidemarkError as error:
            messages.append(everything_about(error))
    assert len(messages) == len(calls)
    assert "canary0" not in "\n".join([*messages, said()])


def test_a_server_out_of_reach_and_missing_credentials_show_no_secret(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    retries = Retries(attempts=2, first_pause_ms=1)
    messages = []
    for each in ("s3://bucket/x?endpoint=http://127.0.0.1:1", "s3://bucket/x?endpoint=http://127.0.0.1:1&region=r-1"):
        with pytest.raises(TidemarkError) as failed:
            S3Store(parse_s3_uri(each, {}), retries=retries).get("k")
        messages.append(everything_about(failed.value))
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(TidemarkError, match="Set AWS_ACCESS_KEY_ID") as failed:
            S3Store(parse_s3_uri(each, {}), retries=retries).get("k")
        messages.append(everything_about(failed.value))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY_CANARY)
    assert "canary0" not in "\n".join([*messages, said()])


def test_an_endpoint_of_the_aws_configuration_that_is_none_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = http://user:{KEY_CANARY}@no_host\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(InvalidInput, match="endpoint in the AWS configuration") as refused:
        open_store("s3://bucket/x").get("k")
    assert "canary0" not in everything_about(refused.value)


@pytest.mark.parametrize(
    "written",
    [
        f"s3://canary0id:{KEY_CANARY}@bucket/x",
        f"s3://bucket/x?secret={KEY_CANARY}",
        f"s3://bucket/x?endpoint=http://a:{KEY_CANARY}@h",
    ],
)
def test_a_uri_with_a_secret_is_refused_without_repeating_it(
    written: str, said: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    for call in (Table.open, open_store, lambda uri: Table.create(uri, SCHEMA)):
        with pytest.raises(TidemarkError) as refused:
            call(written)
        # The check does not search the test's own source line, which contains the secret.
        assert (
            "canary0" not in f"{refused.value} {refused.value!r} {refused.value.context} {refused.value.__context__!r}"
        )
    with suppress(SystemExit):
        main(["describe", written, "--json"])
    shown = capsys.readouterr()
    assert "canary0" not in shown.out + shown.err + said()

"""Alerts reach a web server, a command and a mail server, and a broken receiver does not block the other receivers."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    Definitions,
    asset,
    build_run_status_sensor_context,
    build_sensor_context,
    materialize,
)

from pipelines.alerts import sensors
from pipelines.alerts.delivery import Alert, deliver
from pipelines.alerts.receivers import AlertsDeclaration, check_url, read_alerts
from pipelines.alerts.sensors import FAILED_RUNS, LATE_TABLES, Cursor, build_alerts, check_late_tables
from pipelines.automation import Automation
from pipelines.cli import main
from pipelines.status import StatusTarget
from pipelines.tables import DeclaredTables, read_tables
from storage_core.base.errors import InvalidInput
from storage_core.data.formats import keys
from storage_core.log.actions import Txn
from storage_core.log.log import TransactionLog
from storage_core.store.contract import Overwrite
from storage_core.table import Table
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from tests.support.certificates import certificate, served_with
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.receivers import Mail, Web, serving

pytestmark = pytest.mark.dagster

CANARY = "canary0"
ALERT = Alert(kind="behind", tables=("clicks",), text="clicks is behind\n\x1b[31mé", at=5, run_id="r1")
HOUR_MS = 3_600_000
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())"


def declared(*receivers: object, timeout: int = 5_000) -> AlertsDeclaration:
    return AlertsDeclaration.model_validate({"receivers": receivers, "timeout": timeout})


def mail(server: Mail) -> dict[str, Any]:
    return {"email": {"to": ["ann@example.com", "bob@example.com"], "host": "127.0.0.1", "port": server.port}}


def test_an_alert_reaches_a_web_server_a_command_and_a_mail_server(tmp_path: Path) -> None:
    web, post, file = Web(), Mail(), tmp_path / "got.json"
    command = [sys.executable, "-c", WRITES, str(file)]
    with serving(web, post):
        done = deliver(ALERT, declared({"webhook": web.url}, {"command": command}, mail(post), timeout=60_000))
    assert (done.taken, done.problems) == (3, ())
    assert web.taken == [json.loads(file.read_text())]
    assert web.taken == [
        {"kind": "behind", "tables": ["clicks"], "text": ALERT.text, "at": 5, "run_id": "r1"},
    ]
    (message,) = post.taken
    assert "Subject: Tidemark: behind: clicks" in message
    assert "To: ann@example.com, bob@example.com" in message
    assert "\x1b" not in message
    assert "run r1" in message


def test_broken_receivers_are_named_without_their_place_and_the_others_are_served() -> None:
    web, moved, failing = Web(), Web(302, (("Location", "/elsewhere"),)), Web(500)
    with socket.create_server(("127.0.0.1", 0)) as silent, serving(web, moved, failing):
        port = silent.getsockname()[1]
        done = deliver(
            ALERT,
            declared(
                {"webhook": f"http://127.0.0.1:{port}/{CANARY}"},
                {"webhook": f"http://127.0.0.1:9/{CANARY}"},
                {"webhook": f"{failing.url}?key={CANARY}"},
                {"webhook": moved.url},
                {"webhook": "$NO_SUCH_HOOK"},
                {"command": [sys.executable, "-c", "import time; time.sleep(600)"]},
                {"command": [sys.executable, "-c", "raise SystemExit(3)"]},
                {"command": ["/no/such/program"]},
                {"email": {"to": ["ann@example.com"], "host": "127.0.0.1", "port": port}},
                {"webhook": web.url},
                timeout=10_000,  # a Python process must start and end in this time
            ),
        )
    assert len(web.taken) == done.taken == 1
    assert [each.partition(":")[0] for each in done.problems] == [
        *(f"receiver {number} (webhook)" for number in range(1, 6)),
        *(f"receiver {number} (command)" for number in range(6, 9)),
        "receiver 9 (email)",
    ]
    assert "HTTP Error 500" in done.problems[2]
    assert "HTTP Error 302" in done.problems[3]
    assert "the environment variable NO_SUCH_HOOK is not set" in done.problems[4]
    assert "ended with exit code 3" in done.problems[6]
    assert CANARY not in "".join(done.problems)


def test_a_name_and_password_in_the_url_of_a_webhook_are_sent_and_in_no_message() -> None:
    web, refusing = Web(), Web(401)
    with serving(web, refusing):
        urls = [each.url.replace("//", f"//ann:{CANARY}%40@") for each in (web, refusing)]
        done = deliver(ALERT, declared(*({"webhook": each} for each in urls)))
    assert web.authorizations == [f"Basic {b64encode(f'ann:{CANARY}@'.encode()).decode()}"]
    assert done.problems == ("receiver 2 (webhook): HTTPError: HTTP Error 401: Unauthorized",)
    silent = deliver(ALERT, declared({"webhook": f"http://ann:{CANARY}@127.0.0.1:9/"}))
    assert CANARY not in "".join(silent.problems)


def secured(server: Mail, security: str, **more: object) -> dict[str, Any]:
    """Return a mail receiver with a user, at a server that `localhost` resolves to."""
    where = {"host": "localhost", "port": server.port, "security": security, "user": "ann"}
    return {"email": {"to": ["ann@example.com"], **where, **more}}


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_password_goes_to_a_mail_server_with_a_certificate_that_is_believed(
    security: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_SMTP_PASSWORD", CANARY)
    file = certificate(tmp_path / "own.pem", "localhost")
    post = Mail(served_with(file), offers_starttls=security == "starttls")
    with serving(post):
        done = deliver(ALERT, declared(secured(post, security, ca_file=str(file)), timeout=30_000))
    assert done.problems == ()
    assert (post.logins, len(post.taken)) == ([f"\0ann\0{CANARY}"], 1)


@pytest.mark.parametrize("security", ["tls", "starttls"])
@pytest.mark.parametrize("fault", ["is not signed by", "is for another host", "is not valid at this time"])
def test_no_password_and_no_message_go_to_a_mail_server_with_a_wrong_certificate(
    fault: str, security: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_SMTP_PASSWORD", CANARY)
    host = "somebody.else" if fault == "is for another host" else "localhost"
    file = certificate(tmp_path / "shown.pem", host, ended=fault == "is not valid at this time")
    believed = {} if fault == "is not signed by" else {"ca_file": str(file)}
    post = Mail(served_with(file), offers_starttls=security == "starttls")
    with serving(post):
        done = deliver(ALERT, declared(secured(post, security, **believed), timeout=30_000))
    (problem,) = done.problems
    assert problem.startswith("receiver 1 (email): the certificate of the mail server")
    assert fault in problem
    assert (post.logins, post.taken) == ([], [])


def test_no_password_is_sent_where_somebody_removed_the_offer_of_starttls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_SMTP_PASSWORD", CANARY)
    post = Mail()
    with serving(post):
        done = deliver(ALERT, declared(secured(post, "starttls"), timeout=30_000))
    assert "the mail server does not offer STARTTLS" in done.problems[0]
    assert (post.logins, post.taken) == ([], [])
    missing = str(tmp_path / "missing.pem")
    done = deliver(ALERT, declared(secured(post, "tls", ca_file=missing)))
    assert "`ca_file` is not a file of certificates" in done.problems[0]


def test_no_alert_is_posted_to_a_web_server_with_a_wrong_certificate_or_after_a_redirect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web, other = Web(tls=served_with(certificate(tmp_path / "own.pem", "localhost"))), Web()
    moved = [Web(status, (("Location", other.url),)) for status in (301, 303, 307, 308)]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{other.server_address[1]}")  # a proxy would receive the secret
    with serving(web, other, *moved):
        hooks = [web.url.replace("http://127.0.0.1", "https://localhost"), *(each.url for each in moved)]
        done = deliver(ALERT, declared(*({"webhook": each} for each in hooks), timeout=30_000))
    assert done.problems[0].startswith("receiver 1 (webhook): the certificate of the web server is not signed by")
    assert ["HTTP Error 30" in each for each in done.problems[1:]] == [True] * 4
    assert (done.taken, web.taken, other.taken) == (0, [], [])
    assert [len(each.taken) for each in moved] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        f"webhook: ftp://host/{CANARY}",
        f'webhook: "http://{CANARY} x/"',
        f"{{webhook: 'https://host', command: [{CANARY}]}}",
        "command: []",
        "email: {to: []}",
        f"webhook: hooks.example.com/{CANARY}",
        f"webhook: [{CANARY}]",
        f"{{webhook: {{url: {CANARY}}}}}",
        f"hooks.example.com/{CANARY}",
        "email: {to: ['ann']}",
        "email: {to: ['a@b'], user: x}",
        "email: {to: ['a@b'], ca_file: /ca.pem}",
        "email: {to: ['a@b'], security: tls, ca_file: ca.pem}",
        "{}",
    ],
)
def test_a_wrong_receiver_is_refused_with_its_line_and_not_repeated(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(f"receivers:\n  - {wrong}\n")
    with pytest.raises(InvalidInput, match=r"alerts\.yaml:\d+: field") as refused:
        read_alerts(tmp_path)
    assert CANARY not in str(refused.value)


def test_a_command_that_is_a_text_is_refused_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(f"receivers:\n  - command: curl -u ann:{CANARY} example.com\n")
    with pytest.raises(InvalidInput) as refused:
        read_alerts(tmp_path)
    said = 'field `receivers.0.command`: the command is a text. Write a list of words, such as ["program", "argument"]'
    assert said in str(refused.value)
    assert CANARY not in str(refused.value)


def test_a_name_and_password_are_not_sent_in_the_clear_to_another_machine() -> None:
    with pytest.raises(InvalidInput, match="send its password without encryption") as refused:
        check_url(f"http://ann:{CANARY}@example.com/")
    assert CANARY not in str(refused.value)
    check_url(f"https://ann:{CANARY}@example.com/")


def test_a_file_that_declares_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text("- 1\n")
    with pytest.raises(InvalidInput, match=r"is .*\. Write a mapping"):
        read_alerts(tmp_path)


def test_the_command_lists_receivers_and_tries_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    assert main(["alerts"]) == 0
    assert "declares no receiver" in capfd.readouterr().out
    assert main(["alerts", "--test"]) == 2
    assert f"no alert can be sent. Write a receiver into {tmp_path / 'alerts.yaml'}" in capfd.readouterr().err
    web = Web()
    monkeypatch.setenv("HOOK", web.url)
    (tmp_path / "alerts.yaml").write_text("receivers: [{webhook: $HOOK}]\n")
    with serving(web):
        assert main(["alerts", "--test", "--json"]) == 0
    assert web.taken[0]["kind"] == "test"
    assert json.loads(capfd.readouterr().out) == {"receiver": 1, "kind": "webhook"}
    assert main(["alerts", "--test"]) == 5
    capfd.readouterr()
    post = Mail(served_with(certificate(tmp_path / "own.pem", "localhost")))
    where = f"host: localhost, port: {post.port}, security: tls"
    (tmp_path / "alerts.yaml").write_text(f"receivers: [{{email: {{to: [ann@example.com], {where}}}}}]\n")
    with serving(post):
        assert main(["alerts", "--test"]) == 5
    assert "receiver 1 (email): the certificate of the mail server is not signed by" in capfd.readouterr().err


def place(name: str) -> StatusTarget:
    table = Table.create(f"memory://{uuid.uuid4()}", pa.schema([("n", pa.int64())]))
    table.append({"n": 1})
    return StatusTarget(name=name, uri=table.uri, freshness_ms=HOUR_MS)


def test_a_table_is_told_of_once_when_it_is_behind_unreadable_and_fresh_again() -> None:
    one = place("one")
    table = Table.open(one.uri)
    web, cursor, clock = Web(), Cursor(), ManualClock(table.snapshot.timestamp)

    def kinds() -> list[str]:
        nonlocal cursor
        done = check_late_tables([one], declared({"webhook": web.url}), Cursor.of(cursor.to_text()), clock)
        cursor = done.cursor
        return [each.kind for each in done.sent]

    with serving(web):
        assert kinds() == []
        clock.now += HOUR_MS + 60_000
        assert [kinds(), kinds()] == [["behind"], []]
        table.append({"n": 2})
        clock.now = Table.open(one.uri).snapshot.timestamp
        assert [kinds(), kinds()] == [["recovered"], []]
        table.store.put(keys.version_key(1), b"{", Overwrite())
        assert [kinds(), kinds()] == [["unreadable"], []]
    assert [each["kind"] for each in web.taken] == ["behind", "recovered", "unreadable"]


def test_a_table_that_rejects_too_many_rows_is_told_of_once_and_also_while_it_is_behind() -> None:
    one = place("one")
    table = Table.open(one.uri)
    web, cursor, clock = Web(), Cursor(), ManualClock(table.snapshot.timestamp)
    log = TransactionLog(table.store, clock=clock, ids=SeededIds(1))

    def kinds() -> list[str]:
        nonlocal cursor
        done = check_late_tables([one], declared({"webhook": web.url}), Cursor.of(cursor.to_text()), clock)
        cursor = done.cursor
        return [each.kind for each in done.sent]

    def ingest(number: int, **metrics: int) -> None:
        txn = Txn(appId=f"landed:{number}", version=1)
        log.commit(log.snapshot(), [txn], operation="INGEST", metrics=metrics)

    with serving(web):
        ingest(1, rows_in=99, rows_out=99)
        write_quarantine(table.store, "a", 1, [RejectedLine("a", 1, "no number", "")])
        ingest(2, rows_in=1, rows_rejected=1)
        assert kinds() == [], "one percent is allowed"
        ingest(3, rows_in=1, rows_rejected=1)
        assert [kinds(), kinds()] == [["rejecting"], []]
        clock.now += 2 * HOUR_MS
        assert [kinds(), kinds()] == [["behind"], []]
        clock.now += 24 * HOUR_MS
        assert [kinds(), kinds()] == [[], []], "it is still behind, and does not reject rows any more"
        ingest(4, rows_in=1, rows_rejected=1)
        assert [kinds(), kinds()] == [["behind"], []], "it is behind and rejects rows"
        table.append({"n": 2})
        clock.now = max(clock.now, Table.open(one.uri).snapshot.timestamp)
        assert [kinds(), kinds()] == [["rejecting"], []]
        for info in list(table.store.list("quarantine/")):
            table.store.delete([info.key])
        assert [kinds(), kinds()] == [["recovered"], []]
    texts = [each["text"] for each in web.taken]
    assert texts[0] == (
        "one rejects rows: 2 of 101 rows of the last 24 hours were rejected (1.98 %). The limit is 1 %. "
        "The most frequent reasons are: no number (1). Run: tidemark quarantine one"
    )
    assert ["rejected" in each for each in texts] == [True, True, True, True, False]
    assert texts[-1] == "one no longer rejects too many rows"


def test_what_no_receiver_took_is_told_again() -> None:
    one = place("one")
    clock = ManualClock(Table.open(one.uri).snapshot.timestamp + 2 * HOUR_MS)
    done = check_late_tables([one], declared({"webhook": "http://127.0.0.1:9/"}), Cursor(), clock)
    assert (done.sent, len(done.problems), done.cursor.said) == ((), 1, {})
    web = Web()
    with serving(web):
        check_late_tables([one], declared({"webhook": web.url}, {"webhook": "http://127.0.0.1:9/"}), done.cursor, clock)
    assert len(web.taken) == 1


def test_a_tick_looks_at_so_many_tables_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "MOST_PER_TICK", 2)
    made = place("x")
    places = [replace(made, name=name) for name in "abc"]
    clock, web, cursor = ManualClock(Table.open(made.uri).snapshot.timestamp + 2 * HOUR_MS), Web(), Cursor()
    told = []
    with serving(web):
        for _ in range(3):
            done = check_late_tables(places, declared({"webhook": web.url}), cursor, clock)
            cursor = done.cursor
            told.append([each.tables[0] for each in done.sent])
    assert told == [["a", "b"], ["c"], []]
    assert Cursor.of("nonsense") == Cursor.of('{"said": 1}') == Cursor()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeclaredTables:
    """Make a folder with a table that is less fresh than declared. Make this folder the working directory."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "clicks.yaml").write_text("name: clicks\nuri: clicks\ncolumns: {n: long}\nfreshness: 1m\n")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "clicks"]) == 0
    return read_tables(tmp_path / "tables")


def test_the_two_sensors_of_dagster_tell_of_a_failed_run_and_of_a_late_table(
    project: DeclaredTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asset(key=AssetKey(["clicks", "ingested"]))
    def ingested() -> None:
        raise InvalidInput("no such column")

    defs = Definitions.merge(Definitions(assets=[ingested]), build_alerts(project, Automation()))
    failed, late = defs.resolve_sensor_def(FAILED_RUNS), defs.resolve_sensor_def(LATE_TABLES)
    web = Web()
    with DagsterInstance.ephemeral() as instance, serving(web):
        run = materialize([ingested], instance=instance, raise_on_error=False)
        (event,) = (each for each in run.all_events if each.event_type is DagsterEventType.RUN_FAILURE)
        context = build_run_status_sensor_context(
            sensor_name=FAILED_RUNS,
            dagster_event=event,
            dagster_instance=instance,
            dagster_run=run.dagster_run,
            repository_def=defs.get_repository_def(),
        ).for_run_failure()
        assert failed(context) is None
        Path("alerts.yaml").write_text(f"receivers: [{{webhook: '{web.url}'}}, {{command: [/no/such/program]}}]\n")
        failed(context)
        now_ms = Table.open("clicks").snapshot.timestamp + 60_001
        monkeypatch.setattr("storage_core.base.clock.SystemClock.now_ms", lambda _: now_ms)
        ticked = build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
        assert "1 table late, unreadable or with too many rejected rows. 1 alert sent" in str(late(ticked))
        assert Cursor.of(ticked.cursor).said == {"clicks": "behind"}
    first, second = web.taken
    assert (first["kind"], first["tables"], first["run_id"]) == ("run_failed", ["clicks"], run.run_id)
    assert "clicks__ingested: " in first["text"]
    assert "no such column" in first["text"]
    assert (second["kind"], second["tables"]) == ("behind", ["clicks"])


def test_a_tick_of_several_failed_runs_tells_of_each_that_is_not_tried_again_once(project: DeclaredTables) -> None:
    @asset(key=AssetKey(["clicks", "ingested"]))
    def ingested() -> None:
        raise InvalidInput("no such column")

    defs = Definitions.merge(Definitions(assets=[ingested]), build_alerts(project, Automation()))
    repository, failed, web = defs.get_repository_def(), defs.resolve_sensor_def(FAILED_RUNS), Web()
    Path("alerts.yaml").write_text(f"receivers: [{{webhook: '{web.url}'}}]\n")
    with DagsterInstance.ephemeral() as instance, serving(web):

        def tick(cursor: str | None) -> str | None:
            with build_sensor_context(instance, cursor=cursor, repository_def=repository) as context:
                return failed.evaluate_tick(context).cursor

        cursor = tick(None)
        for will_retry in ("true", "false", "true"):
            tags = {"dagster/will_retry": will_retry}
            materialize([ingested], instance=instance, raise_on_error=False, tags=tags)
        for _ in range(3):
            cursor = tick(cursor)
    assert [each["kind"] for each in web.taken] == ["run_failed"]

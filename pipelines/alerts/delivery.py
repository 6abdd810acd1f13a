"""Delivery of an alert to every receiver within a time limit. An error of one receiver does not stop the others."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from typing import Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pipelines.alerts.receivers import PASSWORD, AlertsDeclaration, EmailDeclaration, ReceiverDeclaration, on_loopback
from storage_core.base.errors import InvalidInput, TidemarkError, Unavailable
from storage_core.base.text import escaped, shortened, without_locations

_GRACE_SECONDS = 1.0
_AT_ANOTHER_TIME, _OF_ANOTHER_HOST = (9, 10), (62, 64)
"""OpenSSL's error codes for invalid certificates: not yet valid, expired, another host name, or another address."""

Kind = Literal["run_failed", "behind", "rejecting", "drifted", "unreadable", "recovered", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert.

    Attributes:
        kind: The kind of event.
        tables: The tables that the alert is about.
        text: What happened, in a few lines.
        at: The time in milliseconds since the epoch.
        run_id: The id of a failed run.
    """

    kind: Kind
    tables: tuple[str, ...]
    text: str
    at: int
    run_id: str | None = None

    @property
    def subject(self) -> str:
        """One line with the kind of the alert and the first tables."""
        about = f": {', '.join(self.tables[:3])}" if self.tables else ""
        return shortened(f"Tidemark: {self.kind.replace('_', ' ')}{about}")

    def to_json(self) -> str:
        """Return the JSON object that webhooks and commands receive (`docs/spec.md`), in ASCII."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The number of receivers that accepted an alert, and the problems of the other receivers.

    A problem contains the number, the kind and the error of the receiver. The text of a problem never contains the
    address of the receiver.
    """

    taken: int
    problems: tuple[str, ...]


def deliver(alert: Alert, declared: AlertsDeclaration) -> Delivered:
    """Send the alert to all receivers concurrently. Wait for at most about `timeout` milliseconds. Raises no error.

    After the time limit, the function does not wait for a receiver. The receiver's thread ends when its connection
    ends.
    """
    seconds = declared.timeout / 1000
    outcomes: dict[int, str | None] = {}

    def attempt(number: int, receiver: ReceiverDeclaration) -> None:
        outcomes[number] = _problem(receiver, alert, seconds)

    threads = [
        threading.Thread(target=attempt, args=(number, each), daemon=True)
        for number, each in enumerate(declared.receivers)
    ]
    for each in threads:
        each.start()
    until = time.monotonic() + seconds + _GRACE_SECONDS
    for each in threads:
        each.join(max(0.0, until - time.monotonic()))
    said = [outcomes.get(number, f"no answer within {seconds:g} s") for number in range(len(threads))]
    problems = [
        f"receiver {number + 1} ({declared.receivers[number].kind}): {each}"
        for number, each in enumerate(said)
        if each is not None
    ]
    return Delivered(taken=len(said) - len(problems), problems=tuple(problems))


def _problem(receiver: ReceiverDeclaration, alert: Alert, seconds: float) -> str | None:
    """Deliver the alert. Return the error of the delivery, or None."""
    try:
        if receiver.webhook is not None:
            _post(receiver.url(), alert, seconds)
        elif receiver.command is not None:
            _run(receiver.command, alert, seconds)
        elif receiver.email is not None:
            _mail(receiver.email, alert, seconds)
    except TidemarkError as error:
        return shortened(without_locations(str(error)))
    except Exception as error:  # noqa: BLE001  # a broken receiver must not stop the others
        if (fault := _certificate_fault(error)) is not None:
            return f"the certificate of the {'mail' if receiver.email else 'web'} server {fault}"
        return shortened(without_locations(f"{type(error).__name__}: {error}"))
    return None


def _certificate_fault(error: Exception) -> str | None:
    """Return the problem of a server's certificate and the remedy. Return None for any other error."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if not isinstance(reason, ssl.SSLCertVerificationError):
        return None
    if reason.verify_code in _AT_ANOTHER_TIME:
        return "is not valid at this time. Renew the certificate of the server, or correct the clock of this machine."
    if reason.verify_code in _OF_ANOTHER_HOST:
        return "is for another host. Declare a host name that the certificate contains."
    return (
        "is not signed by an authority that this machine knows. To use a private authority, set its file: ca_file for "
        "email, the environment variable SSL_CERT_FILE for all."
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Rejects redirects. After a redirect, the HTTP client would send a GET request without the alert."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return no request."""


def _post(url: str, alert: Alert, seconds: float) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "tidemark"}
    parts = urlsplit(url)
    if parts.username is not None:  # urllib would treat a user name and a password as a part of the host
        name, password = unquote(parts.username), unquote(parts.password or "")
        headers["Authorization"] = f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    asked = urllib.request.Request(url, data=alert.to_json().encode(), headers=headers, method="POST")  # noqa: S310  # checked by `check_url`
    certified = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    direct = [urllib.request.ProxyHandler({})] if on_loopback(url) else []  # a remote proxy would see the secrets
    with urllib.request.build_opener(_NoRedirect, certified, *direct).open(asked, timeout=seconds) as answer:
        answer.read(1)


def _run(command: Sequence[str], alert: Alert, seconds: float) -> None:
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.communicate(alert.to_json().encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):  # the process group includes the child processes of the command
                os.killpg(process.pid, signal.SIGKILL)
            raise TidemarkError(f"the command did not end within {seconds:g} s and was stopped") from None
    if process.returncode:
        raise TidemarkError(f"the command ended with exit code {process.returncode}")


def _mail(declared: EmailDeclaration, alert: Alert, seconds: float) -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = alert.subject, declared.sender, ", ".join(declared.to)
    run = f"\n\nrun {alert.run_id}" if alert.run_id else ""
    message.set_content(escaped(f"{alert.text}{run}\n", keep="\n"))
    with _mail_server(declared, seconds) as server:
        if declared.user is not None:
            server.login(declared.user, os.environ.get(PASSWORD, ""))
        server.send_message(message)


def _mail_server(declared: EmailDeclaration, seconds: float) -> smtplib.SMTP:
    """Return a connection to the server. Unless `security` is `none`, the server has a valid certificate."""
    if declared.security == "none":
        return smtplib.SMTP(declared.host, declared.port, timeout=seconds)
    try:
        context = ssl.create_default_context(cafile=declared.ca_file)
    except OSError:  # TLS errors are also `OSError`
        raise InvalidInput(
            "`ca_file` is not a file of certificates that this user can read. Name a file in PEM format."
        ) from None
    if declared.security == "tls":
        return smtplib.SMTP_SSL(declared.host, declared.port, timeout=seconds, context=context)
    server = smtplib.SMTP(declared.host, declared.port, timeout=seconds)
    try:
        server.starttls(context=context)
    except BaseException as error:
        server.close()
        if isinstance(error, smtplib.SMTPNotSupportedError):
            raise Unavailable(
                "the mail server does not offer STARTTLS. Declare `security: tls` with the port for TLS. Also check "
                "that the host is the mail server."
            ) from None
        raise
    return server

"""The receivers of alerts about failed runs and late tables. `alerts.yaml` next to `tables/` declares the receivers.

For secrets, a value can be the name of an environment variable. A value that names an environment variable begins with
`$`. This module does not import Dagster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from storage_core.base.errors import InvalidInput
from storage_core.change.declaration_file import load_optional
from storage_core.change.declaration_parts import Closed, Milliseconds

ALERTS = "alerts.yaml"
PASSWORD = "TIDEMARK_SMTP_PASSWORD"  # noqa: S105  # the name of a variable, not a secret
_ADDRESS = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def _url(given: object) -> str:
    """Check a URL. The check is here so that no message contains the URL, because a URL may contain a secret."""
    text = given if isinstance(given, str) else ""
    if not _VARIABLE.fullmatch(text):
        check_url(text)
    return text


def _words(given: object) -> object:
    """Reject a command that is a single text, because commands run without a shell.

    No message repeats this text, because the text may contain a secret.
    """
    if isinstance(given, str):
        raise InvalidInput(
            'the command is a text. Write a list of words, such as ["program", "argument"], because no shell '
            "runs the command."
        )
    return given


def _receivers(given: object) -> object:
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        raise InvalidInput(
            "receivers is not a list of mappings. Write a list of mappings, each with webhook, command or email"
        )
    return given


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise InvalidInput("the address is not valid. Write it as ann@example.com")
    return text


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise InvalidInput("the ca_file is not an absolute path. Write the whole path, such as /etc/ssl/mail-ca.pem")
    return path


def on_loopback(url: str) -> bool:
    """Return whether the host of a URL is the local machine."""
    return urlsplit(url).hostname in _LOOPBACK


def check_url(text: str) -> None:
    """Raise `InvalidInput` for a URL that cannot receive alerts. The message does not repeat the URL."""
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_sound = urlsplit(""), False
    if not is_sound or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInput(
            "the webhook is not a URL. Write https://…, or $NAME for the environment variable that contains the URL"
        )
    if parts.username is not None and parts.scheme == "http" and not on_loopback(text):
        raise InvalidInput("the webhook would send its password without encryption. Write https://…")


class EmailDeclaration(Closed):
    """The recipients and the server of an email.

    The environment variable `TIDEMARK_SMTP_PASSWORD` contains the password of the server.

    The server must have a valid certificate. If `ca_file` is set, its certificate authorities replace the authorities
    of the system.
    """

    to: tuple[Annotated[str, AfterValidator(_address)], ...] = Field(min_length=1)
    sender: Annotated[str, AfterValidator(_address)] = "tidemark@localhost"
    host: str = "localhost"
    port: int = Field(default=25, ge=1, le=65535)
    security: Literal["none", "starttls", "tls"] = "none"
    user: str | None = None
    ca_file: Annotated[str, AfterValidator(_absolute)] | None = None

    @model_validator(mode="after")
    def _no_password_in_the_clear(self) -> Self:
        if self.user is not None and self.security == "none":
            raise InvalidInput(
                "the password of the user would not be encrypted. Declare `security: starttls` or `security: tls`"
            )
        if self.ca_file is not None and self.security == "none":
            raise InvalidInput(
                "a ca_file has no effect with `security: none`. Declare `security: starttls` or `security: tls`, or "
                "leave ca_file out"
            )
        return self


class ReceiverDeclaration(Closed):
    """One receiver: a `webhook` or a `command` that gets JSON, or an `email`."""

    webhook: Annotated[str, BeforeValidator(_url)] | None = None
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_words)] = Field(default=None, min_length=1)
    email: EmailDeclaration | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.webhook, self.command, self.email)) != 1:
            raise InvalidInput("a receiver needs one of webhook, command and email. Give exactly one")
        return self

    @property
    def kind(self) -> str:
        """The kind of the receiver, by its name in the declaration."""
        return "webhook" if self.webhook else "command" if self.command else "email"

    def url(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the URL of the webhook.

        Raises:
            InvalidInput: The environment variable is not set, or its value is not a valid URL.
        """
        found = self.webhook or ""
        if found.startswith("$"):
            variable = found[1:]
            found = environment.get(variable, "")
            if not found:
                raise InvalidInput(
                    f"the environment variable {variable} is not set. Set {variable} to the URL of the webhook."
                )
        check_url(found)
        return found

    def unset_variable(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Return the name of a required environment variable that is not set, or None."""
        name = self.webhook[1:] if self.webhook and self.webhook.startswith("$") else None
        if self.email is not None and self.email.user is not None:
            name = PASSWORD
        return name if name is not None and not environment.get(name) else None


class AlertsDeclaration(Closed):
    """All receivers. `timeout` is the time limit of each receiver for one alert."""

    receivers: Annotated[tuple[ReceiverDeclaration, ...], BeforeValidator(_receivers)] = ()
    timeout: Annotated[Milliseconds, Field(ge=100, le=60_000)] = 10_000


def read_alerts(root: Path) -> AlertsDeclaration:
    """Return the receivers that a file in this folder declares.

    If the file is missing, there are no receivers. Raises the errors of `load_as`.
    """
    return load_optional(AlertsDeclaration, root / ALERTS)

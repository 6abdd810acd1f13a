"""Who hears of failures and late tables: `alerts.yaml` beside `tables/`, checked completely (decision 0164).

A value that begins with `$` is the name of an environment variable, for what is a secret. Free of Dagster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from storage_core.declaration_file import load_optional
from storage_core.declaration_parts import Closed, Milliseconds
from storage_core.errors import InvalidInput

ALERTS = "alerts.yaml"
PASSWORD = "TIDEMARK_SMTP_PASSWORD"  # noqa: S105  # the name of the variable that holds it
_ADDRESS = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def _url(given: object) -> str:
    """A URL may hold a secret, so one that is none of the right form is judged here, where no message repeats it."""
    text = given if isinstance(given, str) else ""
    if not _VARIABLE.fullmatch(text):
        check_url(text)
    return text


def _words(given: object) -> object:
    """A command is not given to a shell, so a text is refused. It may hold a secret, so no message repeats it."""
    if isinstance(given, str):
        raise InvalidInput('a command is a list of words, such as ["program", "argument"]; no shell reads it')
    return given


def _receivers(given: object) -> object:
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        raise InvalidInput("receivers are a list of mappings, each with webhook, command or email")
    return given


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise InvalidInput("an address is written as ann@example.com")
    return text


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise InvalidInput("a ca_file is an absolute path, such as /etc/ssl/mail-ca.pem")
    return path


def on_loopback(url: str) -> bool:
    """Return whether the host of a URL is this machine."""
    return urlsplit(url).hostname in _LOOPBACK


def check_url(text: str) -> None:
    """Return for a URL that alerts can be posted to. Raises `InvalidInput`, which does not repeat it."""
    try:
        parts = urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_sound = urlsplit(""), False
    if not is_sound or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidInput("a webhook is a URL, https://…, or $NAME for the environment variable that holds it")
    if parts.username is not None and parts.scheme == "http" and not on_loopback(text):
        raise InvalidInput("a webhook with a name and a password is https://…, so that these are not sent in the clear")


class EmailDeclaration(Closed):
    """Whom to write to, and over which server; the password is in the environment, `TIDEMARK_SMTP_PASSWORD`.

    The certificate of the server has to be valid. `ca_file` has the authorities in place of those of the system.
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
                "a user needs `security: starttls` or tls, so that the password is not sent in the clear"
            )
        if self.ca_file is not None and self.security == "none":
            raise InvalidInput("a ca_file needs `security: starttls` or tls, which use certificates")
        return self


class ReceiverDeclaration(Closed):
    """One receiver: a `webhook` that gets JSON, a `command` that gets it on standard input, or an `email`."""

    webhook: Annotated[str, BeforeValidator(_url)] | None = None
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_words)] = Field(default=None, min_length=1)
    email: EmailDeclaration | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(each is not None for each in (self.webhook, self.command, self.email)) != 1:
            raise InvalidInput("a receiver is one of webhook, command and email")
        return self

    @property
    def kind(self) -> str:
        """What it is, as the declaration calls it."""
        return "webhook" if self.webhook else "command" if self.command else "email"

    def url(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return where the webhook is. Raises `InvalidInput` when the variable that it names is not set, or no URL."""
        found = self.webhook or ""
        if found.startswith("$"):
            variable = found[1:]
            found = environment.get(variable, "")
            if not found:
                raise InvalidInput(f"the environment variable {variable} is not set; set it to the URL of the webhook")
        check_url(found)
        return found


class AlertsDeclaration(Closed):
    """All receivers; each has `timeout` for one alert."""

    receivers: Annotated[tuple[ReceiverDeclaration, ...], BeforeValidator(_receivers)] = ()
    timeout: Annotated[Milliseconds, Field(ge=100, le=60_000)] = 10_000


def read_alerts(root: Path) -> AlertsDeclaration:
    """Return the receivers that the file in this folder declares; without a file there is none. Raises as `load_as`."""
    return load_optional(AlertsDeclaration, root / ALERTS)

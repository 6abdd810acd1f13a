"""The processes that Dagster consists of, each as the program that it is: code server, daemon and webserver.

They know of each other by the address of the code server alone, so each may be stopped and started by itself, on one
machine or on several.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import yaml

from jobs.spark.code_archive import first_on_path
from pipelines.environment import DAGSTER_HOME
from pipelines.tables import TABLES
from storage_core.errors import InvalidInput

LOCATION = "tidemark"
HEARTBEAT_SECONDS = 150
"""A code server that hears nothing of its watch for so long ends, so that none is left over; answers may take 120 s."""

BACKFILLS_WAIT = {"DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1"}
"""By this a backfill waits while the code server is away. Without it, it takes its assets for removed, and fails."""

_PACKAGES = Path(__file__).resolve().parents[2]
_LONGEST_SOCKET = 100
"""Bytes: systems refuse longer paths of sockets, macOS above 103."""


class Service(StrEnum):
    """One of the processes."""

    CODE = "code"
    DAEMON = "daemon"
    WEBSERVER = "webserver"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the code server is: a local socket, or a host and port. Anyone who reaches it can run code there."""

    socket: str | None = None
    host: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `HOST:PORT`, or the path of a socket, means. Raises `InvalidInput`."""
        host, _, port = text.rpartition(":")
        if "/" not in text and host and port.isdecimal():
            return cls(host=host, port=int(port))
        if "/" not in text or len(os.fsencode(text)) > _LONGEST_SOCKET:
            raise InvalidInput(
                f"{text!r} is no address of a code server; give HOST:PORT, or a path to a socket, such as "
                f"/run/tidemark/code, of at most {_LONGEST_SOCKET} bytes"
            )
        return cls(socket=text)

    def options(self) -> list[str]:
        """Return it as the server is told it."""
        if self.socket:
            return ["--socket", self.socket]
        return ["--host", str(self.host), "--port", str(self.port)]

    def target(self) -> str:
        """Return it as gRPC names it."""
        return f"unix:{self.socket}" if self.socket else f"{self.host}:{self.port}"

    def entry(self) -> Mapping[str, object]:
        """Return it as a workspace has it."""
        where = {"socket": self.socket} if self.socket else {"host": self.host, "port": self.port}
        return {"grpc_server": {"location_name": LOCATION, **where}}


def command_of(
    service: Service, address: Address, home: Path, *, host: str, port: int, hosts: Sequence[str] = ()
) -> list[str]:
    """Return the program of a service with its arguments; what the others need of a workspace is written to the home.

    Host and port are those that the webserver listens on. Hosts are those by which people reach it from elsewhere.
    """
    if service is Service.CODE:
        code = ["--python-file", str(_PACKAGES / "pipelines" / "definitions.py")]
        about = ["--working-directory", str(_PACKAGES), "--location-name", LOCATION]
        alive = ["--heartbeat", "--heartbeat-timeout", str(HEARTBEAT_SECONDS)]
        return [*_python("dagster"), "code-server", "start", *code, *about, *alive, *address.options()]
    workspace = ["--workspace", str(_workspace(address, home))]
    if service is Service.DAEMON:
        return [*_python("dagster._daemon"), "run", *workspace]
    allowed = [part for each in hosts for part in ("--allow-host", each)]
    return [*_python("pipelines.processes.webserver"), "--host", host, "--port", str(port), *allowed, *workspace]


def environment_of(home: Path, tables: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every service."""
    ours = {DAGSTER_HOME: str(home), TABLES: str(tables), "DAGSTER_DISABLE_TELEMETRY": "1"}
    return {**environment, **first_on_path(environment), **ours, **BACKFILLS_WAIT}


def _python(module: str) -> Sequence[str]:
    return [sys.executable, "-m", module]


def _workspace(address: Address, home: Path) -> Path:
    """The file of this code server, which no other overwrites; replaced as a whole: somebody may be reading it."""
    file = home / f"workspace-{hashlib.sha256(address.target().encode()).hexdigest()[:12]}.yaml"
    made = file.with_name(f"{file.name}.{os.getpid()}")
    made.write_text(yaml.safe_dump({"load_from": [address.entry()]}), encoding="utf-8")
    return made.replace(file)

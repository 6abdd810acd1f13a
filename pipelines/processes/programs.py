"""The three processes of Dagster: code server, daemon and webserver.

- Commands: the program and arguments of each process. The processes have only the address of the code server in common.
  Each process can therefore be stopped and started alone, on one machine or on several machines.
- Hosts: the names that browsers use to reach the webserver. The headers of requests contain these names, and
  `--allow-host` declares them. The commands use this module to check `--allow-host`, because this module does not
  import the webserver.
- The lock: only one daemon can use a home folder of Dagster. Two daemons would request every run twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Self

import yaml

from jobs.spark.java import first_on_path
from pipelines.tables import DAGSTER_HOME
from storage_core.base.errors import Held, InvalidInput
from storage_core.change.declaration import TABLES

# The hosts of the webserver.


DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_AUTHORITY = re.compile(rf"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>{_NAME}))(?::(?P<port>[0-9]{{1,5}}))?")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and its port. If the text contains no port, the port is None."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the value of a `Host` header, or an origin without its scheme, into a host and a port.

        Return None if the text is invalid.
        """
        if (found := _AUTHORITY.fullmatch(text.lower())) is None:
            return None
        port = None if found["port"] is None else int(found["port"])
        return None if port is not None and not 0 < port < 1 << 16 else cls(found["v6"] or found["name"], port)

    def has_origin(self, origin: Authority) -> bool:
        """Return whether a page with this origin came from this host. The port of the origin must be set."""
        ports = DEFAULT_PORTS.values() if self.port is None else (self.port,)
        return self.host == origin.host and origin.port in ports


def declared_hosts(names: Iterable[str]) -> list[Authority]:
    """Return the hosts that `--allow-host` declares. Raises `InvalidInput` for a text that is not a host."""
    found = []
    for name in names:
        host = Authority.parse(name)
        if host is None or ((address := address_of(host.host)) and address.is_unspecified):
            raise InvalidInput(
                f"--allow-host {name!r} is not a host. Write the name that people use, and its port where the address "
                "in the browser has one: tidemark.example.com or tidemark.example.com:8443."
            )
        found.append(host)
    return found


def host_names(host: str) -> list[str]:
    """Return a list with the value of `--host` if this value is a name.

    If `--host` is an address, the list is empty. The webserver's guard then accepts the IP address on which the
    connection arrived.
    """
    return [] if address_of(host) else [host]


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that the text contains, or None."""
    try:
        return ip_address(host)
    except ValueError:
        return None


# The lock of the daemon.


def require_no_other_daemon(home: Path) -> None:
    """Lock the home folder until this process ends.

    A program that replaces this process keeps the lock until its own end.

    The lock is valid only on this machine.

    Raises:
        Held: Another process has locked the folder.
    """
    lock = os.open(home / "daemon.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode(errors="replace") or "that starts"
        os.close(lock)
        raise Held(
            f"{home}: a daemon of Dagster already uses this folder (process {holder}). Use that daemon, end it, or "
            "set another DAGSTER_HOME."
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    fcntl.fcntl(lock, fcntl.F_SETFD, 0)  # the program that replaces this process keeps the lock


# The commands of the processes.


LOCATION = "tidemark"
HEARTBEAT_SECONDS = 150
"""A code server without heartbeats ends after this number of seconds, so that no server remains.

Answers may take 120 s.
"""

BACKFILLS_WAIT = {"DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1"}
"""An environment variable that makes a backfill wait while the code server cannot be reached.

Without the variable, the backfill would treat the assets as removed and fail.
"""

_PACKAGES = Path(__file__).resolve().parents[2]
_LONGEST_SOCKET = 100
"""The maximum length of a socket's path in bytes.

Operating systems reject longer paths. For example, macOS rejects paths above 103 bytes.
"""


class Service(StrEnum):
    """One of the three Dagster processes."""

    CODE = "code"
    DAEMON = "daemon"
    WEBSERVER = "webserver"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the code server: a local socket, or a host and a port.

    Anyone who can connect to the address can run code in the code server.
    """

    socket: str | None = None
    host: str | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address from a text. The text is `HOST:PORT`, or the path of a socket. Raises `InvalidInput`."""
        host, _, port = text.rpartition(":")
        if "/" not in text and host and port.isdecimal():
            return cls(host=host, port=int(port))
        if "/" not in text or len(os.fsencode(text)) > _LONGEST_SOCKET:
            raise InvalidInput(
                f"{text!r} is not an address of a code server. Give HOST:PORT, or a path to a socket of at most "
                f"{_LONGEST_SOCKET} bytes, such as /run/tidemark/code."
            )
        return cls(socket=text)

    def options(self) -> list[str]:
        """Return the address as command-line options of the server."""
        if self.socket:
            return ["--socket", self.socket]
        return ["--host", str(self.host), "--port", str(self.port)]

    def target(self) -> str:
        """Return the address in gRPC's format."""
        return f"unix:{self.socket}" if self.socket else f"{self.host}:{self.port}"

    def entry(self) -> Mapping[str, object]:
        """Return the address as an entry of a workspace file."""
        where = {"socket": self.socket} if self.socket else {"host": self.host, "port": self.port}
        return {"grpc_server": {"location_name": LOCATION, **where}}


def command_of(
    service: Service, address: Address, home: Path, *, host: str, port: int, hosts: Sequence[str] = ()
) -> list[str]:
    """Return the command of a service.

    For the daemon and the webserver, the function also writes their workspace file into the home folder.

    The webserver listens on `host` and `port`. `hosts` contains the names under which people on other machines reach
    the webserver.
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
    """Return the environment for every service."""
    ours = {DAGSTER_HOME: str(home), TABLES: str(tables), "DAGSTER_DISABLE_TELEMETRY": "1"}
    return {**environment, **first_on_path(environment), **ours, **BACKFILLS_WAIT}


def _python(module: str) -> Sequence[str]:
    return [sys.executable, "-m", module]


def _workspace(address: Address, home: Path) -> Path:
    """Write and return the workspace file for this code server.

    The file is replaced atomically, because other processes may read it at the same time.
    """
    file = home / f"workspace-{hashlib.sha256(address.target().encode()).hexdigest()[:12]}.yaml"
    made = file.with_name(f"{file.name}.{os.getpid()}")
    made.write_text(yaml.safe_dump({"load_from": [address.entry()]}), encoding="utf-8")
    return made.replace(file)

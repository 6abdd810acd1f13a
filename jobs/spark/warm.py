"""A warm Spark, which already runs on this machine, for jobs that select no other Spark (decision 0039).

`tidemark spark up` starts the warm Spark. The warm Spark is a Connect server on the loopback interface, and clients
need a token. A file describes the server, and only this user can read it. The file contains the server's address, and
digests of the server's code, Java and environment. A job with different code, Java or environment starts its own Spark.
Jobs reuse the sessions of the server, but two jobs never use a session at the same time. The Python workers of an
earlier job are then ready for the next job.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jobs.spark.java import ROOT, folder, java_home, modules
from jobs.spark.session import connect, limit_retries, spark_errors
from storage_core.base.errors import TidemarkError, Unavailable
from storage_core.base.limits import CacheSettings
from storage_core.base.process import is_dead, open_own, require_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = "TIDEMARK_SPARK_SERVER"
"""The name of an environment variable with the path of the server's file. The default is next to the user's cache."""

SESSIONS = 8
"""The number of sessions that later jobs reuse. If all sessions are in use, a concurrent job gets a new session."""

LOG = logging.getLogger(__name__)

_HOST = "127.0.0.1"  # a name may resolve to [::1], and another user may listen there at this port
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of the variable with which PySpark requests TLS
_ANSWER_SECONDS = 5.0
# The prefixes of the environment variables that tasks read. Tasks run with the environment of the server.
_READ_BY_TASKS = ("AWS_", "TIDEMARK_S3", "TIDEMARK_CACHE")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmServer:
    """A running server.

    Attributes:
        process: The process of the server, in the form of `storage_core.base.process`.
        port: The port of its sessions.
        token: The token of its sessions.
        made_of: A digest of its code, Python and Java.
        environment: A digest of the environment variables that its tasks read.
    """

    process: str
    port: int
    token: str
    made_of: str
    environment: str

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return int(self.process.rpartition("/")[0].rpartition("/")[2])

    @property
    def answers(self) -> bool:
        """Whether the server's process runs, and a socket of this user accepts connections at its port."""
        if is_dead(self.process) or not listens_for_this_user(self.port):
            return False
        try:
            socket.create_connection((_HOST, self.port), _ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    def address(self, session: uuid.UUID) -> str:
        """Return the address of this session for PySpark.

        A header contains the token, and the server checks this header.

        With the parameter `token`, PySpark would require the host name `localhost` or TLS.
        """
        header = quote(f"Bearer {self.token}")
        return f"sc://{_HOST}:{self.port}/;authorization={header};user_id=tidemark;session_id={session}"

    def to_json(self) -> str:
        """Return the content for the server's file."""
        return json.dumps(asdict(self))


class WarmSession:
    """A session of the server. Only this process uses the session, until the process leaves the session or ends."""

    def __init__(self, server: WarmServer, settings: Mapping[str, str], file: Path) -> None:
        """Join a session that earlier jobs used, or begin a new session.

        Raises `Unavailable` if the server does not accept the session.
        """
        number, self._lock = _free_session(file)
        self._environment = _of_spark()
        self.place = f"warm Spark at {_HOST}:{server.port}"
        known = None if number is None else hashlib.sha256(f"{server.token}/{number}".encode()).digest()[:16]
        name = uuid.UUID(bytes=known) if known else uuid.uuid4()
        os.environ.pop(_TOKEN, None)
        try:
            self.session: SparkSession = connect(server.address(name), settings)
            session: Any = self.session
            limit_retries(session)  # a local server that does not answer has ended
            session.interruptAll()  # ends any work that a killed job started
        except Exception as error:
            self._close()
            if not isinstance(error, (TidemarkError, *spark_errors())):
                raise
            raise Unavailable(
                f"{self.place} does not accept a session"
            ) from None  # the original error contains the token
        session.release_session_on_close = number is None

    def leave(self) -> None:
        """End the work that runs in the session. Leave the session to the next job.

        This also works if the server has ended.
        """
        session: Any = self.session
        try:
            with suppress(*spark_errors()):
                session.interruptAll()
            session.stop()
        finally:
            self._close()

    def _close(self) -> None:
        for name in _of_spark().keys() - self._environment.keys():
            del os.environ[name]  # otherwise, PySpark would connect later sessions to this server
        os.environ.update(self._environment)
        if self._lock is not None:
            os.close(self._lock)


def _of_spark() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SPARK_")}


def file_of(environment: Mapping[str, str]) -> Path:
    """Return the path of the server's file. The file may not exist."""
    if named := environment.get(SERVER):
        return Path(named)
    cache = CacheSettings.of(environment).folder
    return (folder(environment) if cache is None else cache.with_name(f"{cache.name}-spark")) / "server.json"


def read(file: Path) -> WarmServer | None:
    """Return the server that a file describes, even if it has ended. Return None if the file is missing or invalid.

    Raises `Unavailable` if another user could have written the file.
    """
    if not os.path.lexists(file):
        return None
    for each in (file.parent, file):
        require_private(each)
    try:
        return WarmServer(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def join(settings: Mapping[str, str], environment: Mapping[str, str]) -> WarmSession | None:
    """Return a session of the running server. If no suitable server runs, log the reason and return None."""
    file = file_of(environment)
    try:
        server = read(file)
        if server is None:
            return None
        require_fitting(server, environment)
        return WarmSession(server, settings, file)
    except TidemarkError as error:
        LOG.info("a Spark of its own is started: %s", error)
        return None


def require_fitting(server: WarmServer, environment: Mapping[str, str]) -> None:
    """Raise `Unavailable` with a reason if tasks of this process must not run on the server."""
    if not server.answers:
        raise Unavailable("the warm Spark does not run any more. Start the warm Spark with `tidemark spark up`.")
    again = "Restart the warm Spark with `tidemark spark down` and `tidemark spark up`."
    if server.made_of != code_digest():
        raise Unavailable(f"the warm Spark was started with another version, Python or Java. {again}")
    if server.environment != read_by_tasks(environment, server.token):
        raise Unavailable(
            f"the warm Spark was started with other {', '.join(_READ_BY_TASKS)}* in its environment. {again}"
        )


def code_digest() -> str:
    """Return a digest of the code, Python and Java."""
    files = [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in modules()]
    return hashlib.sha256(repr((str(ROOT), files, sys.executable, sys.version, str(java_home()))).encode()).hexdigest()


def read_by_tasks(environment: Mapping[str, str], token: str) -> str:
    """Return a digest of the environment variables that tasks read. The digest does not reveal any value."""
    read = sorted((name, value) for name, value in environment.items() if name.startswith(_READ_BY_TASKS))
    return hashlib.sha256(repr((token, read)).encode()).hexdigest()


def _free_session(file: Path) -> tuple[int | None, int | None]:
    """Return the number and the lock of an unused session, or two Nones if all sessions are in use."""
    for number in range(SESSIONS):
        lock = open_own(file.with_suffix(f".{number}"), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return number, lock
    return None, None


# The owner of the sockets at a port. Secrets are sent only to processes of the same user.

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_FIRST = f"{int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder):08X}"
_MAPPED = f"{'0' * 16}{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"
# Sockets at the addresses 127.0.0.1, 0.0.0.0 and their IPv6 forms accept a connection to 127.0.0.1.
_ADDRESSES = (_FIRST, "0" * 8, _MAPPED + _FIRST, "0" * 32)


def listens_for_this_user(port: int) -> bool:
    """Return whether this user owns all sockets that may accept a connection to 127.0.0.1 at the port.

    A system without `/proc/net` does not show the owner, and the result is then True.
    """
    tables = [each for each in _TABLES if each.exists()]
    owners = {owner for table in tables for owner in _owners(table, port)}
    return not tables or owners == {os.geteuid()}


def _owners(table: Path, port: int) -> list[int]:
    found = []
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, owner, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENING and int(number, 16) == port and address in _ADDRESSES:
                found.append(int(owner))
    return found

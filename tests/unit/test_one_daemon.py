"""A Dagster home has one daemon, and the start of a second daemon reports the process of the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.processes.programs import Address, Service, command_of, require_no_other_daemon
from storage_core.base.errors import Held

KEEPER = """
import os, sys
from pathlib import Path
from pipelines.processes.programs import require_no_other_daemon

require_no_other_daemon(Path(sys.argv[1]))
print("kept", flush=True)
os.execv("/bin/cat", ["cat"])
"""


def test_a_second_daemon_is_refused_until_the_program_that_the_first_became_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"kept\n"
        for data in (b"one\n", b"two\n"):
            process.stdin.write(data)
            process.stdin.flush()
            assert process.stdout.readline() == data, "it is another program now"
            with pytest.raises(Held, match=rf"\(process {process.pid}\)\. "):
                require_no_other_daemon(tmp_path)
    require_no_other_daemon(tmp_path)


def test_each_code_server_has_a_workspace_of_its_own(tmp_path: Path) -> None:
    addresses = (Address(socket="/run/one/code"), Address(socket="/run/two/code"), Address(host="here", port=4266))
    files = [command_of(Service.DAEMON, each, tmp_path, host="", port=0)[-1] for each in addresses]
    texts = [Path(each).read_text() for each in files]
    assert [("/run/one/code" in each, "/run/two/code" in each, "4266" in each) for each in texts] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert command_of(Service.WEBSERVER, addresses[0], tmp_path, host="", port=0)[-1] == files[0]

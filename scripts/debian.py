"""Installs Debian packages without user input. The module works only on Debian and its derivatives, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def install_first(*packages: str) -> bool:
    """Install the first of `packages` that this release has.

    Return False if no package could be installed, or if this is not Debian or not root.
    """
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"setup: installing {packages[0]} with apt-get", file=sys.stderr)
    _apt_get("update", "--quiet")
    return any(_apt_get("install", "--quiet", "--yes", "--no-install-recommends", package) for package in packages)


def _apt_get(*arguments: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # apt-get writes to standard output, but the caller needs standard output for the path
    return subprocess.run(["apt-get", *arguments], check=False, env=environment, stdout=sys.stderr).returncode == 0

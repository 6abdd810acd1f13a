"""Installs Debian packages, where that is possible without asking anybody: on Debian and its kin, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def install_first(*packages: str) -> bool:
    """Install the first of `packages` that this release has; False when none could be, or this is not the place."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"setup: installing {packages[0]} with apt-get", file=sys.stderr)
    _apt_get("update", "--quiet")
    return any(_apt_get("install", "--quiet", "--yes", "--no-install-recommends", package) for package in packages)


def _apt_get(*arguments: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # apt-get talks on stdout, which belongs to the path that the caller prints
    return subprocess.run(["apt-get", *arguments], check=False, env=environment, stdout=sys.stderr).returncode == 0

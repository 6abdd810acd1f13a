"""Makes `.venv/` match the lock: `python3 -m scripts.environment [LOCK]`. LOCK is `dev` (default) or `demo`.

A stamp in `.venv/` contains a digest of all inputs of the environment. If nothing has changed, a run therefore reads
only a few files. The environment is created again if its Python is missing. The environment is also created again if
the folder has moved, because the programs in `.venv/bin` contain their location.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.installer import REQUIREMENTS, ROOT, CannotInstallError, find_uv, install, make_environment

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
COMMAND = ENVIRONMENT / "bin" / "tidemark"
STAMP = ENVIRONMENT / ".tidemark-setup.json"
OLDEST = (3, 11)
OURS = ("tidemark", "storage_core", "jobs", "assets", "pipelines")


def main(arguments: list[str]) -> int:
    """Update `.venv/` to the lock and the project. If the update fails, print the reason in one sentence."""
    _need_python()
    lock = REQUIREMENTS / f"{arguments[0] if arguments else 'dev'}.lock"
    wanted = {"root": str(ROOT), "digest": _digest(lock)}
    found = _stamp()
    if found == wanted and PYTHON.exists() and COMMAND.exists():
        return 0
    try:
        _make(lock, usable=PYTHON.exists() and found.get("root", str(ROOT)) == str(ROOT))
    except CannotInstallError as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    STAMP.write_text(json.dumps(wanted))
    print(f"setup: .venv is ready, and so is {COMMAND.relative_to(ROOT)}")
    return 0


def _need_python() -> None:
    """Run this script in a newer Python if Python is too old. If no Python is new enough, print a message and end."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(14, OLDEST[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer is not None:
            sys.exit(subprocess.run([newer, "-m", "scripts.environment", *sys.argv[1:]], check=False).returncode)
    sys.exit(
        f"setup: Tidemark needs Python 3.11 or newer and {sys.executable} is {platform.python_version()}: "
        "install a newer one, or run make PYTHON=/path/to/python3.11 …"
    )


def _digest(lock: Path) -> str:
    """Return a digest. If the environment needs an update, this digest differs from the digest in the stamp."""
    digest = hashlib.sha256(f"{platform.python_version()} {platform.machine()}".encode())
    for path in (REQUIREMENTS / "build.lock", lock, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stamp() -> dict[str, str]:
    """Return the content of the environment's stamp file. If no valid stamp exists, return an empty mapping."""
    try:
        found = json.loads(STAMP.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _make(lock: Path, *, usable: bool) -> None:
    """Install the locked packages and the project.

    Install the build tools first, because packages without a wheel need these tools.

    If Python writes no bytecode, each start of a program compiles the imported modules again. The function then
    compiles all modules once.
    """
    STAMP.unlink(missing_ok=True)
    if not usable:
        make_environment(ENVIRONMENT, find_uv())
    install(PYTHON, "--require-hashes", "-r", str(REQUIREMENTS / "build.lock"))
    install(PYTHON, "--require-hashes", "--no-build-isolation", "-r", str(lock))
    install(PYTHON, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    if sys.dont_write_bytecode:
        compiler = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0"]  # compileall reports errors in template files
        subprocess.run([*compiler, str(ENVIRONMENT / "lib"), *(str(ROOT / each) for each in OURS)], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Installs locked packages with uv.

If uv is missing, the module installs a private uv. If uv cannot be installed, the module uses pip.

As a program, the module prints the path of uv. `make lock` needs this path. If the argument is the name of a lock file,
the program prints the path of a Python. This Python has the packages of the lock file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PRIVATE = ROOT / ".uv"


class CannotInstallError(Exception):
    """The error if only the owner of the machine can install a missing program.

    The message of the error describes the problem in one sentence.
    """


def find_uv() -> Path | None:
    """Return the uv on PATH, or otherwise the private uv in `.uv/`. The first call installs the private uv.

    Return None if uv is missing and cannot be installed.
    """
    on_path = shutil.which("uv")
    if on_path is not None:
        return Path(on_path)
    private = PRIVATE / "bin" / "uv"
    if not private.exists() and not _bring_uv():
        return None
    return private


def _bring_uv() -> bool:
    """Create `.uv/` with the locked uv. Replace an incomplete folder."""
    _say("installing uv in .uv/")
    try:
        make_environment(PRIVATE)
    except CannotInstallError:
        return False
    pip = [str(PRIVATE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "-r", str(REQUIREMENTS / "installer.lock")]
    return subprocess.run([*pip, *locked], check=False).returncode == 0


def make_environment(path: Path, uv: Path | None = None) -> None:
    """Create a virtual environment at `path` for the running Python. Replace an existing folder."""
    if path.exists():
        shutil.rmtree(path)
    if uv is not None:
        command = [str(uv), "venv", "--quiet", "--python", sys.executable, str(path)]
        if subprocess.run(command, check=False).returncode == 0:
            return
    made = subprocess.run([sys.executable, "-m", "venv", str(path)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(path, ignore_errors=True)
        raise CannotInstallError(
            f"{sys.executable} cannot make a virtual environment: install its venv module "
            "(Debian and Ubuntu: the package python3-venv) or uv, then run make again."
        )


def locked_python(name: str) -> Path:
    """Return the Python in `.NAME/`, with the packages of `requirements/NAME.lock`.

    If the lock file has changed, the folder is created again. Raises CannotInstallError.
    """
    folder, lock = ROOT / f".{name}", REQUIREMENTS / f"{name}.lock"
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        make_environment(folder, find_uv())
        install(python, "--require-hashes", "-r", str(lock))
        stamp.write_text(lock.read_text())
    return python


def install(python: Path, *arguments: str) -> None:
    """Install packages into the environment of `python`. Use uv, or pip if uv fails.

    `arguments` must be valid for both programs. Raises CannotInstallError if both programs fail. The messages of both
    programs are on standard error.
    """
    uv = find_uv()
    if uv is not None:
        command = [str(uv), "pip", "install", "--python", str(python), *arguments]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0:
            return
        _say("uv could not install the packages (its message is above). Setup tries pip, which has its own settings")
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], check=False, capture_output=True).returncode != 0:
        subprocess.run([str(python), "-m", "ensurepip"], check=False, stdout=sys.stderr)
    if subprocess.run([*pip, "install", *arguments], check=False, stdout=sys.stderr).returncode != 0:
        raise CannotInstallError(
            "neither uv nor pip could install the packages: see their messages above; without a network, "
            "run make once where there is one."
        )


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Print the path of uv. If the argument is a lock file, print the path of a Python with its packages."""
    if arguments:
        try:
            print(locked_python(arguments[0]))
        except CannotInstallError as failure:
            _say(str(failure))
            return 1
        return 0
    uv = find_uv()
    if uv is None:
        _say("uv is missing and could not be installed. Install uv, then run make again.")
        return 1
    print(uv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

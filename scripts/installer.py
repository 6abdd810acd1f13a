"""Installs locked packages with uv. If uv is missing, it installs a private uv. If that fails, it uses pip.

As a program, it prints the path of uv, which `make lock` needs. With the name of a lock file as its argument, it prints
the path of the Python that has the packages of this lock.
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
    """The machine lacks something that only its owner can install. The message describes it in one sentence."""


def find_uv() -> Path | None:
    """Return the uv on PATH, or else the private uv in `.uv/`, which the first call installs.

    Return None if there is no uv and the installation fails.
    """
    on_path = shutil.which("uv")
    if on_path is not None:
        return Path(on_path)
    private = PRIVATE / "bin" / "uv"
    if not private.exists() and not _bring_uv():
        return None
    return private


def _bring_uv() -> bool:
    """Create `.uv/` with the locked uv. An incomplete folder is replaced."""
    _say("bringing uv along in .uv/")
    try:
        make_environment(PRIVATE)
    except CannotInstallError:
        return False
    pip = [str(PRIVATE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "-r", str(REQUIREMENTS / "installer.lock")]
    return subprocess.run([*pip, *locked], check=False).returncode == 0


def make_environment(path: Path, uv: Path | None = None) -> None:
    """Create a new virtual environment at `path` for the running Python, in place of an existing folder."""
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
    """Return the Python in `.NAME/` that has the packages of `requirements/NAME.lock`.

    The folder is created again if the lock file has changed. Raises CannotInstallError.
    """
    folder, lock = ROOT / f".{name}", REQUIREMENTS / f"{name}.lock"
    python, stamp = folder / "bin" / "python", folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        make_environment(folder, find_uv())
        install(python, "--require-hashes", "-r", str(lock))
        stamp.write_text(lock.read_text())
    return python


def install(python: Path, *arguments: str) -> None:
    """Install packages into the environment of `python`, with uv or else with pip.

    `arguments` must be valid for both programs. Raises CannotInstallError if both fail. Their messages are on standard
    error.
    """
    uv = find_uv()
    if uv is not None:
        command = [str(uv), "pip", "install", "--python", str(python), *arguments]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0:
            return
        _say("uv could not install the packages (its message is above); trying pip, which has its own settings")
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
    """Print the path of uv. If the argument is a lock file, print the path of the Python with its packages."""
    if arguments:
        try:
            print(locked_python(arguments[0]))
        except CannotInstallError as failure:
            _say(str(failure))
            return 1
        return 0
    uv = find_uv()
    if uv is None:
        _say("there is no uv and it could not be brought along: install uv, then run make again.")
        return 1
    print(uv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

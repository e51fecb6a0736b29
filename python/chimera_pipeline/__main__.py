"""`python -m chimera_pipeline` is the command `chimera` of the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def command() -> Path:
    """The path of the command, or an error that says where it would be."""
    name = "chimera" + (sysconfig.get_config_var("EXE") or "")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))]
    for folder in folders:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"there is no `{name}` in {' or '.join(folders)}: wheels have it, and builds from source do not; run "
        "`cargo install chimera-pipeline`"
    )


def main() -> None:
    """Runs the command with the arguments of this process."""
    try:
        path = command()
    except FileNotFoundError as error:
        sys.exit(str(error))
    if sys.platform == "win32":
        sys.exit(subprocess.run([path, *sys.argv[1:]]).returncode)
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()

"""Makes what PyPI gets: a wheel with the command `chimera` in it, and an sdist. It publishes nothing.

`python wheel.py OUT` wants a Python with maturin and twine; on Linux with ziglang, cargo-zigbuild and auditwheel, too: there the
wheel and its command run with any glibc that is not older than that of manylinux2014.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of what is made")
    parser.add_argument("--debug", action="store_true", help="build without optimization, to try it out")
    given = parser.parse_args()
    is_zig = sys.platform == "linux"
    command = zig_command(is_debug=given.debug) if is_zig else own_command(is_debug=given.debug)
    wheel = build(given.out, is_zig=is_zig, is_debug=given.debug)
    finish(wheel, command)
    check(wheel)
    maturin("sdist", "--out", given.out)
    made = [wheel, *given.out.glob("*.tar.gz")]
    run("twine", "check", "--strict", *made)
    if is_zig:
        audit(wheel)
    print(*made, sep="\n")


def zig_command(*, is_debug: bool) -> Path:
    """Builds the command for the glibc of manylinux2014, and returns its path."""
    system = f"{platform.machine()}-unknown-linux-gnu"
    zigbuild = Path(sys.executable).with_name("cargo-zigbuild")
    options = ["--locked", "--bin", "chimera", "--target", f"{system}.2.17", *([] if is_debug else ["--release"])]
    subprocess.run([zigbuild, "zigbuild", *options], cwd=ROOT, check=True)
    return target() / system / ("debug" if is_debug else "release") / "chimera"


def own_command(*, is_debug: bool) -> Path:
    """Builds the command for this system, and returns its path."""
    options = ["--locked", "--bin", "chimera", *([] if is_debug else ["--release"])]
    subprocess.run(["cargo", "build", *options], cwd=ROOT, check=True)
    name = "chimera.exe" if sys.platform == "win32" else "chimera"
    return target() / ("debug" if is_debug else "release") / name


def target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def build(out: Path, *, is_zig: bool, is_debug: bool) -> Path:
    """Builds the wheel and returns its path."""
    options = [*([] if is_debug else ["--release"]), *(["--zig", "--compatibility", "manylinux2014"] if is_zig else [])]
    maturin("build", "--locked", "--quiet", "--interpreter", sys.executable, "--out", out, *options)
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def finish(wheel: Path, command: Path) -> None:
    """Adds the command, takes the paths of this machine out of the list of dependencies, and writes the RECORD anew."""
    with zipfile.ZipFile(wheel) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    record = next(info for info, _ in files if info.filename.endswith(".dist-info/RECORD"))
    script = zipfile.ZipInfo(record.filename.replace(".dist-info/RECORD", f".data/scripts/{command.name}"))
    script.external_attr = 0o100755 << 16
    files.append((script, command.read_bytes()))
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in files:
            if info is record:
                continue
            if info.filename.endswith(".cyclonedx.json"):
                content = content.replace(ROOT.as_uri().encode(), b"file:///chimera").replace(str(ROOT).encode(), b"/chimera")
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{info.filename},sha256={digest},{len(content)}")
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        archive.writestr(record, "\n".join([*lines, f"{record.filename},,", ""]))


def check(wheel: Path) -> None:
    """Fails unless the wheel has its licence, its command, and no path of this machine or link that is dead on PyPI."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    named = lambda pattern: [name for name in files if re.search(pattern, name)]
    missing = [what for what in (r"licenses/LICENSE$", r"/METADATA$", r"py\.typed$") if not named(what)]
    if not named(r"\.data/scripts/chimera(\.exe)?$"):
        missing.append("the command")
    with_paths = [name for name in named(r"\.json$|METADATA$") if str(ROOT).encode() in files[name]]
    links = [link for name in named("/METADATA$") for link in re.findall(r"\]\((?!https?:)[^)]*\)", files[name].decode())]
    for what, found in (("lacks", missing), ("has paths of this machine in", with_paths), ("has links that are dead on PyPI:", links)):
        if found:
            sys.exit(f"{wheel.name} {what} {', '.join(found)}")


def audit(wheel: Path) -> None:
    """Fails unless all libraries and programs of the wheel need no newer glibc than its name says."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True)
    print(done.stdout)
    if not re.search(r"platform tag:\s+\"manylinux_2_(5|12|17)_", done.stdout):
        sys.exit(f"{wheel.name} needs a newer glibc than manylinux2014 has")


def maturin(*arguments: str | Path) -> None:
    run("maturin", arguments[0], "--manifest-path", HERE / "Cargo.toml", *arguments[1:])


def run(module: str, *arguments: str | Path) -> None:
    """Runs a module of this Python, or ends with its exit code."""
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)])
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()

"""Writes a new project: an agent with a tool, a React page, and a test."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from khala.console import KnownFailure

TEMPLATE = Path(__file__).parent / "template"
PACKAGE = Path(__file__).parents[1]
IN_WHEEL = PACKAGE / "npm"
BUILDER = PACKAGE.parents[1] / "infra" / "typescript_clients.py"
IN_CHECKOUT = PACKAGE.parent / "clients" / "typescript" / "packed"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME_CHARACTERS = 60
TAKEN = frozenset({"khala", "khala-server", "khala-client", "agents", "tests", "web"})
"""Names that packages or files of the project have already."""
NPM_PACKAGES = ("client", "react")
RENAMED = {"env.example": ".env.example", "gitignore": ".gitignore"}
"""Files that other tools would read if they had their names in the template."""
SKIPPED_FOLDER = "__pycache__"


def create(name: str, parent: Path) -> Path:
    """Write the project into the folder `name` of `parent`. Returns the folder. Raises `KnownFailure`."""
    _check_name(name)
    packages = _npm_packages()
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise KnownFailure(f"{folder} exists, and is not an empty folder. Choose another name.")
    version = packages["client"].stem.rpartition("-")[2]
    words = {"PROJECT_NAME": name, "CLIENT_VERSION": version}
    for source in sorted(TEMPLATE.rglob("*")):
        place = source.relative_to(TEMPLATE)
        if source.is_file() and SKIPPED_FOLDER not in place.parts:
            target = folder / place.with_name(RENAMED.get(place.name, place.name))
            _write(target, _filled(source.read_text(), words).encode())
    for package in packages.values():
        _write(folder / "web" / "vendor" / package.name, package.read_bytes())
    return folder


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS or NAME.fullmatch(name) is None:
        raise KnownFailure(
            f"{name!r} cannot be a project's name: use up to {MAX_NAME_CHARACTERS} lower-case letters, digits and "
            "single dashes, the first a letter."
        )
    if name in TAKEN or name in sys.stdlib_module_names:
        raise KnownFailure(f"{name} is the name of another package. Choose another name.")


def _npm_packages() -> Mapping[str, Path]:
    """The packed npm packages of this Khala, by their names. Raises `KnownFailure`."""
    folder = IN_WHEEL if IN_WHEEL.is_dir() else _built_in_checkout()
    found = {package: sorted(folder.glob(f"khala-{package}-*.tgz")) for package in NPM_PACKAGES}
    if missing := [package for package, paths in found.items() if not paths]:
        raise KnownFailure(f"The npm package @khala/{missing[0]} is not in {folder}.")
    return {package: paths[-1] for package, paths in found.items()}


def _built_in_checkout() -> Path:
    """The folder of the packages in a checkout, which are built unless their sources have not changed.

    Raises `KnownFailure`.
    """
    built = subprocess.run([sys.executable, str(BUILDER), "build"], stdout=sys.stderr, check=False)  # noqa: S603  # Khala's own
    if built.returncode != 0:
        raise KnownFailure("The npm packages could not be built. It needs Node.js with npm, and the packages' sources.")
    return IN_CHECKOUT


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

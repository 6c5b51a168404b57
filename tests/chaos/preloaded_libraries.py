"""Compiles libraries for LD_PRELOAD that fake the clock or slow down fsync; needs a C compiler."""

import shutil
import subprocess
from pathlib import Path


def compile_library(name: str, folder: Path) -> Path | None:
    """Compile `<name>.c` of this folder; returns None without a C compiler."""
    if (compiler := shutil.which("cc")) is None:
        return None
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library

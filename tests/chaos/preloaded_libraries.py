"""Libraries that are preloaded into processes to lie to them; made anew for each run, where there is a C compiler."""

import shutil
import subprocess
from pathlib import Path


def compiled(name: str, folder: Path) -> Path | None:
    """The library made of `<name>.c` beside this file; None where nothing compiles it."""
    if (compiler := shutil.which("cc")) is None:
        return None
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library

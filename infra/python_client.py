"""Makes the Python client without asyncio from the one with it: `python infra/python_client.py [--check]`.

The modules of `khala_client._sync`, but `core`, are those of `khala_client._async` with `await` and `async` left out
and the names of types changed. With `--check` it writes nothing, and the exit status is 1 if a module is not current.
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "app" / "clients" / "python" / "src" / "khala_client"
MODULES = ("client", "plans", "resources", "runs", "threads")
NOTE = "# Made by infra/python_client.py. Change khala_client/_async instead.\n"
REPLACEMENTS = (
    (r"from khala_client\.streams import AsyncStream\n", "from khala_client._sync.core import Stream\n"),
    (r"khala_client\._async", "khala_client._sync"),
    (r"\bAsyncCore\b", "SyncCore"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\basync def __aenter__\b", "def __enter__"),
    (r"\basync def __aexit__\b", "def __exit__"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\baclose\b", "close"),
    (r"other tasks raises", "other threads raises"),
    (r" A client belongs to one event loop, and may be used by any number of its tasks\.",
     " A client may be used by any number of threads."),
    (r"; it may be async\.", "."),
)  # fmt: skip


def without_asyncio(source: str) -> str:
    """The source of a module of `_async`, for `_sync`."""
    for pattern, replacement in REPLACEMENTS:
        source = re.sub(pattern, replacement, source)
    return NOTE + source


def formatted(source: str) -> str:
    """The source as ruff sorts its imports and formats it."""
    ruff = str(Path(sys.executable).parent / "ruff")
    for words in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [ruff, *words, "--stdin-filename", str(PACKAGE / "_sync" / "made.py"), "-"]
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> None:
    """Write the modules, or check them."""
    stale = []
    for name in MODULES:
        made = formatted(without_asyncio((PACKAGE / "_async" / f"{name}.py").read_text()))
        target = PACKAGE / "_sync" / f"{name}.py"
        if not target.exists() or target.read_text() != made:
            stale.append(str(target))
            if "--check" not in sys.argv:
                target.write_text(made)
    if "--check" in sys.argv and stale:
        print("Run infra/python_client.py, these modules are not current:", *stale, sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

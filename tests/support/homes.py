"""Folders for what servers under test keep beside the database; they are gone when the tests are."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def home() -> Path:
    """The one of this test process."""
    made = Path(tempfile.mkdtemp(prefix="khala-test-home-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made

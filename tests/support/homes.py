"""The KHALA_HOME of servers under test, which is deleted at the end of the tests."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


@functools.cache
def home() -> Path:
    """The folder of this test process."""
    made = Path(tempfile.mkdtemp(prefix="khala-test-home-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made

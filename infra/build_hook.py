"""Builds the page when a wheel is built, so that who installs it needs no node."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class WebBuildHook(BuildHookInterface[BuilderConfig]):
    """Runs `infra/web.py build` before a wheel is packed; an editable install builds by `make web` instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, or fail the wheel."""
        if version != "editable":
            subprocess.run([sys.executable, str(HERE / "web.py"), "build"], check=True)

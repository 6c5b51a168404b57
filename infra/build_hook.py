"""Adds the built page and the migrations to the wheel, so that an installed Khala needs neither Node nor a checkout."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class WebBuildHook(BuildHookInterface[BuilderConfig]):
    """Runs `infra/web.py build` before a wheel is packed. An editable install uses the checkout's own folders."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page and add both folders to the wheel. Raises `CalledProcessError` if the build fails."""
        if version != "editable":
            subprocess.run([sys.executable, str(HERE / "web.py"), "build"], check=True)
            build_data["force_include"] |= {"app/web/dist": "khala/web", "migrations": "khala/migrations"}

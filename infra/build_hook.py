"""Adds to the wheel what is built or lies elsewhere: the page, the npm packages and the migrations.

So an installed Khala needs neither Node nor a checkout.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
FOLDERS = {
    "app/web/dist": "khala/web",
    "app/clients/typescript/packed": "khala/npm",
    "migrations": "khala/migrations",
}
"""Folders of the tree, and their places in the wheel."""


class WebBuildHook(BuildHookInterface[BuilderConfig]):
    """Builds the page and the npm packages before a wheel is packed. An editable install uses those of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and add the folders to the wheel. Raises `CalledProcessError` if a build fails."""
        if version != "editable":
            for program in ("web.py", "typescript_clients.py"):
                subprocess.run([sys.executable, str(HERE / program), "build"], check=True)
            build_data["force_include"] |= FOLDERS

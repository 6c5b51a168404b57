"""The settings of `khala dev`: those of the project, on loopback, with a database in the project's folder."""

import logging
import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from khala import telemetry
from khala.console import KnownFailure, load_settings
from khala.settings import Settings

HOME = ".khala"
"""The data folder, in the project's folder."""
APP_FILE = "agents.py"
"""The module that is served if `KHALA_APP` names none."""
DEFAULTS = {
    "KHALA_GRACE_SECONDS": "1",
    # A program that stands at a breakpoint is not to be ended.
    "KHALA_WATCHDOG_SECONDS": "0",
    "KHALA_LOG": "text",
}


def prepare(folder: Path, port: int | None, note: Callable[[str], None], *, verbose: bool = False) -> Settings:
    """Set what `khala dev` fixes in the environment, for child processes, too, and load the settings.

    `note` gets a sentence about each setting that is ignored. Unless `verbose`, only warnings are logged. Raises
    `KnownFailure` where it would be unsafe.
    """
    chosen_home = os.environ.get("KHALA_HOME", "")
    os.environ.update({name: value for name, value in DEFAULTS.items() if name not in os.environ})
    if port is not None:
        os.environ["PORT"] = str(port)
    home = folder / HOME
    os.environ["KHALA_HOME"] = str(home)
    settings = load_settings()
    _refuse_unsafe(settings)
    if chosen_home and Path(chosen_home).expanduser().resolve() != home:
        note(f"KHALA_HOME is ignored: khala dev keeps its data in {home}.")
    if not settings.runs.app and (folder / APP_FILE).is_file():
        os.environ["KHALA_APP"] = Path(APP_FILE).stem
        settings = load_settings()
    _create_home(home)
    telemetry.configure(settings.process.log_format, level=logging.INFO if verbose else logging.WARNING)
    return settings


def _refuse_unsafe(settings: Settings) -> None:
    """Raise `KnownFailure` if others could reach this server, or if it would use a database that others use."""
    if not is_loopback(settings.server.host):
        raise KnownFailure(
            f"khala dev signs everybody in who can open its page, so it listens only on this machine, and not on "
            f"HOST={settings.server.host}. Use khala serve."
        )
    if settings.database.url is not None:
        raise KnownFailure(
            "khala dev uses a database of its own in .khala, and DATABASE_URL names another one. Use khala serve, or "
            "start it with an empty DATABASE_URL: DATABASE_URL= khala dev"
        )
    if settings.server.public_url is not None:
        raise KnownFailure(
            "khala dev is for this machine only, and KHALA_PUBLIC_URL names an address for others. Use khala serve, or "
            "start it with an empty one: KHALA_PUBLIC_URL= khala dev"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _create_home(home: Path) -> None:
    """Create the data folder, which Git ignores."""
    home.mkdir(mode=0o700, exist_ok=True)
    ignored = home / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n")

"""The browser in which the page is tested: its program and its arguments."""

import os
import shutil
from pathlib import Path

HEADLESS_SHELL = "chromium-headless-shell"
"""Chromium's engine without windows, notifications and the services behind them. It takes less of a core."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
    Path("/Applications/Chromium.app/Contents/MacOS/Chromium"),
)
"""Browsers of macOS, which are not in PATH."""
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Disables two hidden pages of address bar suggestions, which cost a CPU second at each start.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
)


def path(*, whole: bool = False) -> str | None:
    """The browser: CHROMIUM, or the first that is installed. None: that of Playwright.

    `whole`: not the headless shell, even if CHROMIUM names it. Raises `FileNotFoundError` if CHROMIUM names no program.
    """
    chosen = os.environ.get("CHROMIUM", "")
    if chosen and not (whole and Path(chosen).name == HEADLESS_SHELL):
        found = shutil.which(chosen)
        if found is None:
            raise FileNotFoundError(f"CHROMIUM names no program: {chosen}")
        return found
    programs = BROWSERS if whole else (HEADLESS_SHELL, *BROWSERS)
    installed = next(filter(None, map(shutil.which, programs)), None)
    return installed or next((str(path) for path in APPLICATIONS if path.exists()), None)

"""The choice of the browser in which the page is tested."""

from pathlib import Path

import pytest

from tests.support import browser_program


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs. It has none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(browser_program, "APPLICATIONS", ())
    return tmp_path


def add(programs: Path, name: str) -> str:
    """Add an empty program; returns its path."""
    path = programs / name
    path.touch(0o755)
    return str(path)


def test_the_headless_shell_is_chosen_before_chromium_unless_the_whole_browser_is_needed(programs: Path) -> None:
    assert browser_program.path() is None
    chromium = add(programs, "chromium")
    assert browser_program.path() == chromium
    shell = add(programs, "chromium-headless-shell")
    assert (browser_program.path(), browser_program.path(whole=True)) == (shell, chromium)


def test_a_variable_chooses_the_browser_by_name_or_path(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chromium, shell, own = [add(programs, name) for name in ("chromium", "chromium-headless-shell", "own")]
    monkeypatch.setenv("CHROMIUM", "chromium")
    assert browser_program.path() == chromium
    monkeypatch.setenv("CHROMIUM", own)
    assert browser_program.path(whole=True) == own
    monkeypatch.setenv("CHROMIUM", shell)
    assert (browser_program.path(), browser_program.path(whole=True)) == (shell, chromium)


def test_a_variable_that_names_no_program_is_an_error(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHROMIUM", "absent")
    with pytest.raises(FileNotFoundError, match="absent"):
        browser_program.path()

"""Commands of operators in a home that has no database."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from khala.cli import main


@pytest.mark.parametrize(
    "words",
    [
        "accounts admin a@example.com",
        "tokens list",
        "webhooks list",
        "workers token pylon --account artanis --agents reviewer",
        "verify",
        "feedback",
        "purge",
        "migrate --check",
        "backup dump folder",
    ],
)
def test_a_command_says_that_there_is_no_database_and_creates_none(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    result = CliRunner().invoke(main, words.split(), env={"KHALA_HOME": str(home), "DATABASE_URL": ""})
    assert result.exit_code == 1, result.output
    assert f"There is no database in {home}." in result.output
    assert list(tmp_path.iterdir()) == []

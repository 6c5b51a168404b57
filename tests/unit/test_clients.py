"""The page about clients is generated from results of the versions that are pinned."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.clients import matrix
from tests.clients.rows import FEATURES, ROWS

ROOT = Path(__file__).parents[2]


def test_the_page_about_clients_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, "infra/clients.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_every_cell_has_a_result_of_the_pinned_version_and_none_failed() -> None:
    results = json.loads(matrix.RESULTS.read_text())
    assert [row.id for row in ROWS] == list(results)
    for row in ROWS:
        cells = results[row.id]["cells"]
        assert results[row.id]["version"] == matrix.version(row), f"{row.id}: run `make clients`"
        assert set(cells) == set(FEATURES), row.id
        assert {cell["state"] for cell in cells.values()} <= {"works", "refused", "ignored", "absent"}, row.id


def test_every_package_of_a_client_is_pinned_and_names_no_registry() -> None:
    for row in ROWS:
        folder = matrix.HERE / row.folder
        if row.kind == "python":
            pins = (folder / "requirements.txt").read_text().splitlines()
            assert [line for line in pins if not re.match(r"[\w.-]+==[\w.]+(?: ; .+)?$", line)] == [], row.id
        else:
            assert '"resolved"' not in (folder / "package-lock.json").read_text(), row.id

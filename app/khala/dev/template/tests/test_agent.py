"""The agent answers in a real Khala, with a database of its own that is deleted afterwards."""

from collections.abc import Iterator

import pytest
from khala.testing import KhalaServer, khala_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KhalaServer]:
    with khala_server(home=tmp_path_factory.mktemp("khala")) as running:
        yield running


def test_the_agent_counts_with_its_tool(server: KhalaServer) -> None:
    answer = server.ask("app:counter", "three short words")
    assert answer.status == "final"
    assert answer.tools == ["count_words"]
    assert answer.text == "You wrote 3 words, which are 17 characters."

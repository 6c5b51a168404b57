"""One answer with text, tools, an approval and take-overs: leave it over one protocol, continue over another one."""

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from khala.domain import ids
from khala.store.postgres.database import Database
from tests.support.agents import call
from tests.support.callers import Person, owned_thread, person
from tests.support.in_process import InProcessServer
from tests.support.known_answer import KnownAnswer
from tests.support.protocols import PROTOCOLS, AiSdkStream, FollowedAnswer, Frame
from tests.support.server import Worker, ended
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT_SECONDS = 100.0
ENV = {"KHALA_LEASE_SECONDS": "1", "KHALA_COOLDOWN_MS": "0", "KHALA_MODEL": "demo", "KHALA_GRACE_SECONDS": "0"}
QUESTION = (
    f"/pace=40 /text {' '.join(f'word{number}' for number in range(60))} "
    + call("write_file", path="a.txt", content="one")
    + " "
    + call("read_file", path="b.txt")
    + " /then "
    + call("delete_file", path="a.txt")
    + f" /say {' '.join(f'end{number}' for number in range(100))}"
)

EDITED = {"path": "b.txt"}
"""The arguments with which the approver lets the last call run."""

server = server_fixture(with_executor=False, **ENV)


class Executors:
    """One executor that can be killed, and the one that takes over."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._env = ENV | {"DATABASE_URL": database_url}
        self._folder = folder
        self.all: list[Worker] = []

    def start(self) -> None:
        worker = Worker(self._folder / f"executor{len(self.all)}.log", self._env)
        self.all.append(worker)
        worker.start()

    def take_over(self) -> None:
        """Start another executor, and kill the one that has the run."""
        self.start()
        self.all[-2].kill()

    def end(self) -> None:
        """End those that are running."""
        with ended(*self.all):
            pass


class Reader:
    """A client that reads frames from a cursor on. Where its stream ends at the pause, it connects again after it."""

    def __init__(self, protocol: Any, answer: FollowedAnswer, decided: asyncio.Event) -> None:
        self.frames: list[Frame] = []
        self.paused = asyncio.Event()
        self._protocol = protocol
        self._answer = answer
        self._decided = decided

    async def read(self, after: Any) -> None:
        """Read up to the end of the answer."""
        while True:
            async with contextlib.aclosing(self._protocol.frames(self._answer, after)) as frames:
                async for frame in frames:
                    self.frames.append(frame)
                    if self._protocol.is_end(frame):
                        return
            await self._decided.wait()
            if isinstance(self._protocol, AiSdkStream):
                self.frames.clear()
            else:
                after = self.frames[-1][0]


async def start(server: InProcessServer, owner: Person, db: Database) -> FollowedAnswer:
    thread_id = str(await owned_thread(db, owner))
    path = f"/api/threads/{thread_id}"
    before = (await server.http.get(path, headers=owner.headers)).raise_for_status().json()
    body = {"text": QUESTION, "messageId": str(ids.new()), "options": {"autopilot": True}}
    sent = (await server.http.post(f"{path}/send", json=body, headers=owner.headers)).raise_for_status().json()
    revision = before["revision"]
    return FollowedAnswer(
        inside=server, headers=owner.headers, thread_id=thread_id, run_id=sent["runId"], revision=revision
    )


async def wait_for(answer: FollowedAnswer, text: str) -> None:
    """Wait until the parts of the run contain this text."""
    path = f"/api/runs/{answer.run_id}/parts"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while text not in (await answer.inside.http.get(path, headers=answer.headers)).raise_for_status().text:
            await asyncio.sleep(0.05)


async def decide(answer: FollowedAnswer) -> None:
    path = f"/api/runs/{answer.run_id}/approvals"
    (approval,) = (await answer.inside.http.get(path, headers=answer.headers)).raise_for_status().json()["items"]
    decision = await answer.inside.http.post(
        f"{path}/{approval['toolCallId']}", json={"approved": True, "editedArgs": EDITED}, headers=answer.headers
    )
    decision.raise_for_status()


async def test_each_protocol_continues_where_each_other_one_was_left(server: InProcessServer, tmp_path: Path) -> None:
    executors = Executors(tmp_path, server.database_url)
    db = Database(server.database_url)
    executors.start()
    owner = await person(db)
    decided = asyncio.Event()
    answer = await start(server, owner, db)
    live = {name: Reader(protocol, answer, decided) for name, protocol in PROTOCOLS.items()}
    with contextlib.ExitStack() as stack:
        stack.callback(executors.end)
        async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
            for name, reader in live.items():
                group.create_task(reader.read(PROTOCOLS[name].start(answer)))
            await wait_for(answer, "word3")
            executors.take_over()
            await wait_for(answer, '"blocked"')
            left = {name: list(reader.frames) for name, reader in live.items()}
            continued: dict[tuple[str, str], tuple[list[Frame], int, Reader]] = {}
            for number, (before, after) in enumerate(itertools.permutations(PROTOCOLS, 2)):
                frames = left[before][: len(left[before]) * (number % 5 + 1) // 6]
                cursor = await answer.cursor(**PROTOCOLS[before].had(frames))
                reader = Reader(PROTOCOLS[after], answer, decided)
                continued[before, after] = frames, cursor["position"], reader
                group.create_task(reader.read(PROTOCOLS[after].after(cursor)))
            await decide(answer)
            decided.set()
            await wait_for(answer, "end3")
            executors.take_over()
    whole = KnownAnswer()
    PROTOCOLS["WebSocket"].apply(live["WebSocket"].frames, whole)
    assert whole.text.endswith(" end99")
    assert [tool for tool, _ in whole.calls.values()] == ["write_file", "read_file", "delete_file"]
    assert [*whole.edits.values()] == [EDITED]
    assert len(whole.results) == 3
    kinds = [part["kind"] for _, frame in live["WebSocket"].frames for part in frame["parts"]]
    assert kinds.count("notice") == 2, "two executors have taken the run over"
    for (before, after), (frames, position, reader) in continued.items():
        known = KnownAnswer()
        if after != "AI SDK":
            PROTOCOLS[before].apply(frames, known)
        PROTOCOLS[after].apply(reader.frames, known, position)
        assert known.all == whole.all, (before, after, len(frames), position)
    await db.close()

"""The Python client as users install it: from its files, outside of the repository, against servers that are killed."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PathDistribution
from pathlib import Path

import httpx
import pytest

from khala.store.postgres.database import Database
from tests.support.callers import person
from tests.support.client import NO_TLS
from tests.support.ports import free_port
from tests.support.python_packages import UV, interpreter
from tests.support.server import ROOT, Server
from tests.system.browser import words

pytestmark = pytest.mark.timeout(300)

PACKAGE = ROOT / "app" / "clients" / "python"
EXAMPLES = PACKAGE / "examples"
WITHIN_SECONDS = 60

STREAM = """
import asyncio
import sys

from khala_client import AsyncKhala, Khala


def sync(text: str) -> None:
    with Khala() as khala:
        for piece in khala.threads.create().send(text).stream_text():
            print(piece, end="", flush=True)


async def main(text: str) -> None:
    async with AsyncKhala() as khala:
        run = await (await khala.threads.create()).send(text)
        async for piece in run.stream_text():
            print(piece, end="", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        sync(sys.argv[2])
    else:
        asyncio.run(main(sys.argv[2]))
"""

TYPED = """
from decimal import Decimal

from khala_client import (
    AsyncKhala, Khala, RateLimited, RunBudget, RunOptions, TextDelta, ThreadState, ToolBlock, ToolStatus,
)


async def use(khala: AsyncKhala) -> str:
    thread = await khala.threads.create(title="One")
    run = await thread.send("Hello", RunOptions(agent="helper", budget=RunBudget(usd=Decimal("0.1"))))
    async with run.follow() as parts:
        async for seq, part in parts:
            match part:
                case TextDelta(text=text):
                    print(seq + 1, text.upper())
                case ToolStatus(state="blocked", tool_call_id=call):
                    await run.approve(call, edited_args={"path": "a"})
                case _:
                    pass
    state: ThreadState = await thread.state()
    async for update in thread.follow(after=state):
        for message in update.messages:
            for block in message.content or ():
                print(block.tool.upper() if isinstance(block, ToolBlock) else update.revision + 1)
    return (await run.result()).text


def use_sync(khala: Khala) -> str:
    try:
        return "".join(khala.threads.create().send("Hello").stream_text())
    except RateLimited as error:
        return f"{error.limit} {error.retry_after}"
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, which is built from the files of the sdist."""
    folder = tmp_path_factory.mktemp("python-client")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)], PACKAGE)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], unpacked)
    (wheel,) = folder.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    _run([str(UV), "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], folder)
    _run([str(UV), "pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel)], folder)
    others = interpreter(EXAMPLES / "fastapi-app" / "requirements.txt").parents[1]
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages,) = (others / "lib").glob("python*/site-packages")
    (site / "needs.pth").write_text(f"{packages}\n")
    return python


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def token(shared_server: Server) -> str:
    """An API token of a new account."""

    async def create() -> str:
        db = Database(shared_server.env["DATABASE_URL"])
        try:
            return (await person(db)).token
        finally:
            await db.close()

    return asyncio.run(create())


def environment(server: Server, **more: str) -> dict[str, str]:
    """The environment of a program that uses the client."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "KHALA_URL": server.url, **more}


@contextmanager
def running(
    command: list[str], folder: Path, env: Mapping[str, str], log: Path | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """A program with pipes, or with a file for its output. It is killed in the end if it still runs."""
    pipe, errors = subprocess.PIPE, (folder / "errors.log").open("a")
    with errors, (log or folder / "out.log").open("a") as out:
        given = {"cwd": folder, "env": env, "text": True, "stdin": pipe, "stderr": errors}
        process = subprocess.Popen(command, stdout=pipe if log is None else out, **given)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """The output up to and including this text."""
    assert process.stdout is not None
    out = ""
    while not out.endswith(text):
        letter = process.stdout.read(1)
        assert letter, f"the program has ended after {out!r}"
        out += letter
    return out


def read_rest(process: "subprocess.Popen[str]") -> str:
    """The output to its end. `communicate` would leave out what is buffered."""
    assert process.stdout is not None
    out = process.stdout.read()
    process.wait(WITHIN_SECONDS)
    return out


def test_a_wheel_has_one_typed_package_and_three_dependencies(python: Path, tmp_path: Path) -> None:
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    assert {path.name for path in site.glob("khala*") if path.suffix != ".dist-info"} == {"khala_client"}
    assert (site / "khala_client" / "py.typed").is_file()
    (info,) = site.glob("khala_client-*.dist-info")
    needs = {re.split("[<>=]", str(one))[0] for one in PathDistribution(info).requires or ()}
    assert needs == {"httpx", "msgspec", "websockets"}
    assert (info / "licenses" / "LICENSE").is_file()
    imported = "import sys, khala_client; print(sorted({n.split('.')[0] for n in sys.modules} & {'khala', 'litestar'}))"
    assert _run([str(python), "-c", imported], tmp_path) == "[]\n"


def test_programs_of_users_and_the_examples_are_checked_strictly(python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(TYPED.replace('title="One"', "title=1"))
    for example in EXAMPLES.glob("*/*.py"):
        shutil.copy(example, tmp_path)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-executable", str(python), "."]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    [error] = done.stdout.splitlines()
    assert error.startswith("wrong.py:")
    assert error.endswith("[arg-type]")


def test_answers_are_whole_after_the_server_was_killed(python: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(STREAM)
    command = [str(python), "stream.py"]
    env = environment(server)
    with (
        running([*command, "sync", "/words=90 /pace=20"], tmp_path, env) as one,
        running([*command, "async", "/words=90 /pace=20"], tmp_path, env) as other,
    ):
        begun = [read_until(process, "word20 ") for process in (one, other)]
        server.restart()
        texts = [begin + read_rest(process) for begin, process in zip(begun, (one, other), strict=True)]
    assert texts == [words(90), words(90)]
    assert (one.returncode, other.returncode) == (0, 0)


def test_ctrl_c_ends_a_program_that_waits_for_an_answer(python: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(STREAM)
    for kind in ("sync", "async"):
        with running(
            # A test run in the background of a shell ignores the signal, and its children would, too.
            ["env", "--default-signal=INT", str(python), "stream.py", kind, "/words=5000 /pace=20"],
            tmp_path,
            environment(server),
        ) as program:
            read_until(program, "word5 ")
            program.send_signal(signal.SIGINT)
            assert program.wait(WITHIN_SECONDS) == -signal.SIGINT
    errors = (tmp_path / "errors.log").read_text()
    assert errors.count("KeyboardInterrupt") >= 2
    assert "never" not in errors, "no coroutine and no exception is forgotten"


def test_the_terminal_chat_goes_on_after_server_and_program_were_killed(
    python: Path, server: Server, tmp_path: Path
) -> None:
    command = [str(python), str(EXAMPLES / "terminal-chat" / "chat.py")]
    with running(command, tmp_path, environment(server)) as chat:
        assert chat.stdin is not None
        chat.stdin.write("/words=5\n/words=60 /pace=20\n")
        chat.stdin.flush()
        assert read_until(chat, "\n") == words(5) + "\n"
        read_until(chat, "word10 ")
        server.restart()
        read_until(chat, "word30 ")
    with running(command, tmp_path, environment(server)) as again:
        out, _ = again.communicate("/words=3\n", timeout=WITHIN_SECONDS)
    assert out == f"{words(60)}\n{words(3)}\n"
    assert json.loads((tmp_path / "chat.json").read_text()).keys() == {"thread", "key", "text"}


def test_a_web_app_answers_its_own_users(python: Path, server: Server, token: str, tmp_path: Path) -> None:
    port = free_port()
    command = [str(python), "-m", "uvicorn", "app:app", "--port", str(port), "--app-dir", str(EXAMPLES / "fastapi-app")]
    env = environment(server, KHALA_TOKEN=token, PYTHONDONTWRITEBYTECODE="1")
    log = tmp_path / "app.log"
    transport = httpx.HTTPTransport(retries=10, verify=NO_TLS)
    url = f"http://127.0.0.1:{port}"
    with (
        running(command, tmp_path, env, log),
        httpx.Client(base_url=url, transport=transport, timeout=30) as ada,
        httpx.Client(base_url=url, transport=transport, timeout=30) as alan,
    ):
        assert ada.post("/threads").status_code == 401
        assert ada.post("/sign-in", json={"name": "ada", "password": ""}).status_code == 401
        assert ada.post("/sign-in", json={"name": "ada", "password": "lovelace"}).status_code == 204
        assert alan.post("/sign-in", json={"name": "alan", "password": "turing"}).status_code == 204
        thread = ada.post("/threads").json()["id"]
        with ada.stream("POST", f"/threads/{thread}/ask", json={"text": "/words=40 /pace=100"}) as answer:
            pieces = list(answer.iter_text())
        assert ("".join(pieces), len(pieces) > 1) == (words(40), True)
        assert alan.post(f"/threads/{thread}/ask", json={"text": "Hello"}).status_code == 404


def test_a_bot_answers_each_message_of_its_channels_once(
    python: Path, server: Server, token: str, tmp_path: Path
) -> None:
    command = [str(python), str(EXAMPLES / "channel-bot" / "bot.py"), "answered.txt"]
    messages = [
        {"channel": channel, "id": str(number), "author": "Ada", "text": f"/words={number} /pace=0"}
        for number in (1, 2, 2)
        for channel in ("general", "random")
    ]
    lines = [json.dumps(message) + "\n" for message in messages]

    def answers(given: list[str]) -> list[tuple[str, str, str]]:
        with running(command, tmp_path, environment(server, KHALA_TOKEN=token)) as bot:
            out, _ = bot.communicate("".join(given), timeout=WITHIN_SECONDS)
        assert bot.returncode == 0, (tmp_path / "errors.log").read_text()
        return sorted((one["channel"], one["to"], one["text"]) for one in map(json.loads, out.splitlines()))

    first = [(channel, number, words(int(number))) for channel in ("general", "random") for number in "12"]
    assert answers(lines) == first
    (tmp_path / "answered.txt").unlink()
    assert answers(lines[:2]) == [first[0], first[2]], "the message is sent again, and its answer is found"

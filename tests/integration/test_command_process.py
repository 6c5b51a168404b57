"""Commands as processes: what they get, and that no process of them is left, however they and their children behave."""

import asyncio
import sys
from ast import literal_eval
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from khala.domain import ids
from khala.tools.commands import Command, CommandExit, CommandRunner
from khala.tools.commands.runner import CommandOutput
from tests.support.command_agents import with_mark
from tests.support.sandbox_programs import sandbox

SOON = 10.0
THREAD = UUID(int=1)


class Collected:
    """The collected outputs of a command."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.changed = asyncio.Event()

    async def receive_stdout(self, data: bytes) -> None:
        self.stdout += data
        self.changed.set()

    async def receive_stderr(self, data: bytes) -> None:
        self.stderr += data

    async def until(self, text: bytes, *, within: float = SOON) -> None:
        async with asyncio.timeout(within):
            while text not in self.stdout:
                self.changed.clear()
                await self.changed.wait()


def script(code: str, *arguments: str, **more: Any) -> Command:
    """A command that runs this Python code."""
    return Command(name="script", argv=(sys.executable, "-S", "-c", code, *arguments), **{"kill_after": 0.2} | more)


async def run(
    command: Command,
    prompt: str = "",
    collected: Collected | None = None,
    *,
    kill_after: Callable[[], float] = lambda: 60,
) -> tuple[CommandExit, Collected]:
    collected = collected or Collected()
    output = CommandOutput(stdout=collected.receive_stdout, stderr=collected.receive_stderr)
    end = await CommandRunner({command.name: command}).run(command, prompt, THREAD, output, kill_after=kill_after)
    return end, collected


async def test_a_command_reads_its_prompt_and_nothing_else_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHALA_SECRET_KEY", "hush")
    code = "import os, sys; print(sys.stdin.read(), sorted(os.environ), os.environ['TOKEN'], os.listdir('.'))"
    end, output = await run(script(code, variables={"TOKEN": "t"}), "Hi é")
    assert (end.reason, end.code) == ("exited", 0)
    text = output.stdout.decode()
    assert text.startswith("Hi é")
    assert "KHALA" not in text
    assert set(literal_eval(text[text.index("[") : text.index("]") + 1])) <= {"PATH", "HOME", "TOKEN", "LC_CTYPE"}
    assert text.endswith(" t []\n")


async def test_a_prompt_in_an_argument_is_no_option() -> None:
    _, output = await run(script("import sys; print(sys.argv[1:])", "{prompt}", "-"), "--help")
    assert output.stdout == b"[' --help', '-']\n"


async def test_folders_are_those_of_the_operator_of_the_thread_or_of_the_run(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd()); open('made', 'a').close(); print(len(os.listdir('.')))"
    for path in (str(tmp_path), str(tmp_path / "{thread}" / "work")):
        _, output = await run(script(code, folder=path))
        assert output.stdout.decode().split("\n")[0] == path.replace("{thread}", str(THREAD))
    _, output = await run(script(code))
    assert not Path(output.stdout.decode().split("\n")[0]).exists()


async def test_a_command_that_exits_before_it_reads_its_prompt_has_its_own_status() -> None:
    end, output = await run(script("import sys; print('early'); sys.exit(3)"), "x" * 900_000)
    assert (end.code, bytes(output.stdout)) == (3, b"early\n")


@pytest.mark.parametrize(
    "argv", [("no-such-program",), ("/no/such",), ("./missing",), (__file__,), ("sh", "-c", "no-such-program")]
)
async def test_a_command_that_cannot_be_started_is_unavailable(argv: tuple[str, ...]) -> None:
    end, _ = await run(Command(name="missing", argv=argv))
    assert end.reason == "unavailable"
    assert end.problem


async def test_a_command_that_is_killed_has_the_code_of_its_signal() -> None:
    end, _ = await run(script("import os; os.kill(os.getpid(), 9)"))
    assert (end.reason, end.code) == ("exited", 137)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, tell = os.pipe()

def rest(name):
    print(name, flush=True)
    os.write(tell, b"x")
    time.sleep(600)

if os.fork() == 0:  # a child in a session of its own
    os.setsid()
    rest("child")
middle = os.fork()
if middle == 0:  # a daemon, whose parent has ended
    os.setsid()
    if os.fork() == 0:
        rest("daemon")
    os._exit(0)
os.waitpid(middle, 0)
os.read(ready, 1), os.read(ready, 1)
if sys.argv[1] == "exit":
    os._exit(0)
rest("parent")
"""


@pytest.mark.parametrize("how", ["cancel", "timeout", "exit"])
async def test_no_process_is_left_of_a_command_that_ignores_signals_and_makes_daemons(how: str) -> None:
    mark = ids.new().hex
    timeout = 3.0 if how == "timeout" else 60.0
    command = script(STUBBORN, how, mark, timeout=timeout)
    collected = Collected()
    task = asyncio.create_task(run(command, collected=collected))
    await collected.until(b"daemon")
    await collected.until(b"child")
    if how == "cancel":
        await collected.until(b"parent")
        for _ in range(3):  # A cancellation is repeated until the task has ended.
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        end, _ = await task
        assert end.reason == {"timeout": "timeout", "exit": "exited"}[how]
    assert with_mark(mark) == []


async def test_a_command_has_time_to_end_by_itself_after_sigterm() -> None:
    code = """
import signal, sys, time
def end(*_):
    print("bye", flush=True)
    open("ended", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
    collected = Collected()
    command = script(code, kill_after=30.0)
    task = asyncio.create_task(run(command, collected=collected))
    await collected.until(b"ready")
    began = asyncio.get_running_loop().time()
    task.cancel()
    await asyncio.wait({task}, timeout=SOON)
    assert task.cancelled()
    assert asyncio.get_running_loop().time() - began < 5


async def test_a_lost_run_leaves_a_stubborn_command_less_time() -> None:
    collected = Collected()
    command = script(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
        kill_after=60.0,
    )
    task = asyncio.create_task(run(command, collected=collected, kill_after=lambda: 0.1))
    await collected.until(b"ready")
    task.cancel()
    await asyncio.wait({task}, timeout=SOON)
    assert task.cancelled()


async def test_commands_over_the_limit_wait_for_others_to_end(tmp_path: Path) -> None:
    code = """
import os, time
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
    command = script(code, concurrency=2, folder=str(tmp_path))
    runner = CommandRunner({command.name: command})
    collected = [Collected() for _ in range(3)]
    outputs = [CommandOutput(stdout=one.receive_stdout, stderr=one.receive_stderr) for one in collected]
    running = [asyncio.create_task(runner.run(command, "", THREAD, output)) for output in outputs]
    await collected[0].until(b"ready")
    await collected[1].until(b"ready")
    with pytest.raises(TimeoutError):
        await collected[2].until(b"ready", within=0.3)
    (tmp_path / "go").touch()
    assert [(await task).code for task in running] == [0, 0, 0]
    assert b"ready" in collected[2].stdout


async def test_an_error_of_a_receiver_ends_the_command() -> None:
    async def fail(_: bytes) -> None:
        raise LookupError("gone")

    mark = ids.new().hex
    command = script("import time; print('x', flush=True); time.sleep(600)", mark)
    with pytest.raises(LookupError):
        await CommandRunner({"script": command}).run(command, "", THREAD, CommandOutput(stdout=fail, stderr=fail))
    assert with_mark(mark) == []


async def test_a_sandboxed_command_sees_its_files_and_variables_and_no_network_or_home(tmp_path: Path) -> None:
    code = f"""
        cat; echo; cat {tmp_path}/allowed; cat {tmp_path}/hidden; echo "$TOKEN" "$HOME"; echo err >&2; exit 5
    """
    (tmp_path / "allowed").write_text("allowed\n")
    (tmp_path / "hidden").write_text("hidden\n")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    command = Command(
        name="caged",
        argv=("sh", "-c", code),
        sandbox=True,
        files=(f"{tmp_path}/allowed",),
        variables={"TOKEN": "a 'b'"},
    )
    collected = Collected()
    output = CommandOutput(stdout=collected.receive_stdout, stderr=collected.receive_stderr)
    end = await CommandRunner({"caged": command}, await sandbox()).run(command, "Hi", THREAD, output)
    assert (end.reason, end.code) == ("exited", 5)
    assert collected.stdout.decode() == "Hi\nallowed\na 'b' /tmp\n"
    assert b"hidden" in collected.stderr
    assert collected.stderr.endswith(b"err\n")


async def test_a_sandboxed_command_without_a_sandbox_is_unavailable_and_has_a_time_limit() -> None:
    command = Command(name="caged", argv=("sleep", "600"), sandbox=True, timeout=0.3)
    assert (await run(command))[0].reason == "unavailable"
    output = CommandOutput(stdout=Collected().receive_stdout, stderr=Collected().receive_stderr)
    end = await CommandRunner({"caged": command}, await sandbox()).run(command, "", THREAD, output)
    assert end.reason == "timeout"

"""The sandbox: ordinary programs, and its limits."""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from khala.tools import sandbox as package
from khala.tools.port import ToolError
from khala.tools.sandbox import Language, Program, Sandbox, SandboxOptions
from khala.tools.sandbox import sandbox as finding
from khala.tools.sandbox.runtimes import LanguageRuntime
from tests.support.sandbox_programs import BoundedProgramSink, event_loop_delays, run_program, running, sandbox, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
LANGUAGES: list[Language] = ["python", "javascript", "shell"]
MIB = 1024 * 1024


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def inside() -> AsyncIterator[Sandbox]:
    yield await sandbox()


async def test_this_machine_runs_every_language(inside: Sandbox) -> None:
    assert inside.languages == set(LANGUAGES)
    assert package.missing_requirement() is None


async def test_an_unusable_runtime_is_reported_only_if_its_language_has_no_other(
    inside: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    unfit = LanguageRuntime(command=(str(broken),), suffix=".py", shown=(str(tmp_path),))
    working = {language: [runtime] for language, runtime in inside.runtimes.items()}
    for runtimes, expected in ((working["python"], []), ([], ["sandbox_language_missing"])):
        tried = {**working, "python": [unfit, *runtimes]}
        monkeypatch.setattr(finding, "candidates", lambda language, _, tried=tried: iter(tried[language]))
        with capture_logs() as logged:
            found = await Sandbox.find()
        assert found is not None
        assert [line["event"] for line in logged] == expected
        assert ("python" in found.languages) == bool(runtimes)


GREETINGS: dict[Language, str] = {
    "python": "import sys\nprint('Grüße ✓ 日本', sys.stdin.read())\nprint('oh', file=sys.stderr)\nsys.exit(7)",
    "javascript": (
        "const read = require('fs').readFileSync(0, 'utf8'); console.log('Grüße ✓ 日本', read);"
        "console.error('oh'); process.exit(7)"
    ),
    "shell": "echo Grüße ✓ 日本 $(cat); echo oh >&2; exit 7",
}


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_program_has_input_output_and_an_exit_code(inside: Sandbox, language: Language) -> None:
    result = await run_program(inside, GREETINGS[language], language, stdin="von außen".encode())
    assert result.out == "Grüße ✓ 日本 von außen\n"
    assert result.err == "oh\n"
    assert (result.end.reason, result.end.code) == ("exited", 7)
    assert result.end.seconds < 5


async def test_the_standard_libraries_work(inside: Sandbox) -> None:
    result = await run_program(
        inside,
        "import sqlite3, ssl, json, decimal, concurrent.futures, multiprocessing, tempfile, asyncio, subprocess\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(10))))\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x'); print(file.tell())\n"
        "print(asyncio.run(asyncio.sleep(0, 'slept')))\n"
        "print(subprocess.run(['sort'], input='b\\na\\n', text=True, capture_output=True).stdout)\n"
        "exit(0)",
    )
    assert result.out == "45\n[1, 2]\n1\nslept\na\nb\n\n", result
    result = await run_program(
        inside, "printf 'a 1\\nb 2\\n' | awk '{n += $2} END {print n}' | sed s/3/three/", "shell"
    )
    assert result.out == "three\n", result


async def test_output_is_available_while_the_program_runs(inside: Sandbox) -> None:
    sink = BoundedProgramSink()
    task = asyncio.create_task(run_program(inside, "import time\nprint('first')\ntime.sleep(30)", sink=sink))
    await until(lambda: sink.size > 0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hundred_megabytes_pass_with_constant_memory(inside: Sandbox) -> None:
    sink = BoundedProgramSink(max_bytes=200 * MIB, store=False)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    result = await run_program(inside, "head -c 104857600 /dev/full", "shell", sink=sink, seconds=30)
    assert result.end.code == 0, result
    assert sink.size == 100 * MIB
    assert _status("VmHWM") - before < 16 * MIB


async def test_too_much_output_ends_the_program(inside: Sandbox) -> None:
    sink = BoundedProgramSink(max_bytes=MIB)
    result = await run_program(inside, "yes", "shell", sink=sink)
    assert (result.end.reason, result.end.code) == ("output", None)
    assert sink.size <= MIB
    result = await run_program(inside, "echo begin >&2; yes >&2", "shell")
    assert result.end.reason == "output"
    assert 0 < len(result.end.stderr) <= inside.options.stderr


async def test_an_error_in_the_sink_is_raised(inside: Sandbox) -> None:
    class Full:
        async def write(self, data: bytes) -> None:
            raise OSError("No space left")

    marker = _marker()
    with pytest.raises(OSError, match="No space left"):
        await inside.run(Program(language="shell", code=f"echo hello; sleep {marker}"), Full())
    assert not running(marker)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "while True: pass"),
        ("javascript", "for (;;);"),
        ("shell", "while :; do :; done"),
        ("shell", "trap '' HUP INT TERM QUIT XCPU PIPE USR1; while :; do :; done"),
        ("python", "import signal, time\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
         "  except (OSError, ValueError): pass\nwhile True: time.sleep(1)"),
    ],
)  # fmt: skip
async def test_an_endless_program_ends_at_its_timeout(inside: Sandbox, language: Language, code: str) -> None:
    result = await run_program(inside, code, language, seconds=0.7)
    assert (result.end.reason, result.end.code) == ("timeout", None)
    assert 0.7 <= result.end.seconds < 2


async def test_death_by_a_signal_is_reported(inside: Sandbox) -> None:
    result = await run_program(inside, "import os\nos.kill(os.getpid(), 11)")
    assert (result.end.reason, result.end.code) == ("signal", 128 + 11)


async def test_cancelling_ends_the_whole_tree_within_a_second(inside: Sandbox) -> None:
    marker = _marker()
    code = f"for n in 1 2 3 4 5; do setsid sleep {marker} & done; sleep {marker}"
    task = asyncio.create_task(run_program(inside, code, "shell", seconds=60))
    await until(lambda: len(running(marker)) >= 6)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1
    assert not running(marker)


async def test_a_cancelled_launch_leaves_nothing(inside: Sandbox) -> None:
    for pause in (0, 0.001, 0.002, 0.003, 0.005, 0.008):
        marker = _marker()
        task = asyncio.create_task(run_program(inside, f"sleep {marker}", "shell", seconds=60))
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not running(marker), 1)  # noqa: B023  # awaited here


SERVER = """
import asyncio, sys
from khala.tools.sandbox import Program, Sandbox
from tests.support.sandbox_programs import BoundedProgramSink
async def main():
    sandbox = await Sandbox.find()
    await sandbox.run(Program(language="shell", code=sys.argv[1], seconds=60), BoundedProgramSink())
asyncio.run(main())
"""


async def test_a_killed_server_leaves_no_process() -> None:
    marker = _marker()
    code = f"setsid sleep {marker} & (setsid sleep {marker} >/dev/null 2>&1 &); sleep {marker}"
    with subprocess.Popen([sys.executable, "-c", SERVER, code]) as server:
        await until(lambda: sum(_is_sleep(pid) for pid in running(marker)) == 3, 20)
        server.send_signal(signal.SIGKILL)
        server.wait()
    await until(lambda: not running(marker), 1)


async def test_the_server_responds_while_fork_bombs_run(inside: Sandbox) -> None:
    bombs = ["f() { f | f & }; f; sleep 9", "yes", "yes >&2", "while :; do :; done & while :; do :; done"]
    async with event_loop_delays() as beats, asyncio.TaskGroup() as tasks:
        for code in bombs:
            tasks.create_task(
                run_program(inside, code, "shell", seconds=2, sink=BoundedProgramSink(64 * MIB, store=False))
            )
    # At most some tens of milliseconds on an idle machine; other tests may run at the same time.
    ordered = sorted(beats)
    assert ordered[len(ordered) // 2] < 0.05
    assert ordered[-1] < 1.5


async def test_the_number_of_concurrent_programs_is_limited() -> None:
    small = await sandbox(SandboxOptions(max_sandboxes=1, wait_seconds=0.3))
    marker = _marker()
    first = asyncio.create_task(run_program(small, f"sleep {marker}", "shell", seconds=60))
    await until(lambda: bool(running(marker)))
    with pytest.raises(ToolError, match="Too many") as failure:
        await run_program(small, "echo me too", "shell")
    assert failure.value.code == "unavailable"
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await run_program(small, "echo me too", "shell")).out == "me too\n"


async def test_without_bubblewrap_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install bubblewrap" in (package.missing_requirement() or "")
    assert await Sandbox.find() is None


async def test_a_bubblewrap_that_cannot_isolate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in `tmp_path`, which only root can enter: the sandbox's user must reach the folder.
    with tempfile.TemporaryDirectory() as folder:
        tool = Path(folder) / "bwrap"
        tool.write_text("#!/bin/sh\necho bwrap: No permissions to create a new namespace >&2\nexit 1\n")
        tool.chmod(0o755)
        Path(folder).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        assert "unprivileged_userns_clone" in (package.missing_requirement() or "")
        assert await Sandbox.find() is None


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])
async def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, platform: str, name: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert name in (package.missing_requirement() or "")
    assert await Sandbox.find() is None


def _marker() -> str:
    """An argument for `sleep` that no other process has."""
    return f"98{uuid4().int % 10**12}"


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    except OSError:
        return False


def _status(field: str) -> int:
    """The value of this field of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

"""The watchdog process is replaced when it dies, also after a time in which no process could be started."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

from khala.watchdog import watchdog


def _none_can_start(*_: Any, **__: Any) -> NoReturn:
    raise BlockingIOError(11, "no more processes")


def test_a_watchdog_process_that_died_is_replaced_as_soon_as_processes_can_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def begin(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        began.append(popen(*arguments, **options))
        return began[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    with watchdog._process(3600.0, "json", tmp_path) as process:
        assert process is not None
        os.kill(began[0].pid, signal.SIGKILL)
        began[0].wait(10)
        monkeypatch.setattr(subprocess, "Popen", _none_can_start)
        for _ in range(3):
            process.send_heartbeat()
        monkeypatch.setattr(subprocess, "Popen", begin)
        process.send_heartbeat()
        assert len(began) == 2
        assert began[1].poll() is None
    assert began[1].wait(10) == 0

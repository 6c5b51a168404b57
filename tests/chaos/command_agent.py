"""A command agent of chaos runs: it writes words, and takes one effect for each step, however often it is repeated.

Run as `python -S command_agent.py JOURNAL`, with the prompt as standard input. The journal has one JSON line for each
thing that happens. The name of the step in the prompt is the idempotency key of the effect.
"""

import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

TASK = re.compile(r"#(u\d+\.\d+)# words=(\d+) pace=(\d+)")
"""The instructions in the task of a step: its name, the number of words, and words in a second."""
MARKER = "<promise>COMPLETE</promise>"
LEAVES_DAEMON = 3
"""Every so many steps, the program leaves a process behind that has a session of its own."""
DAEMON_SECONDS = 600


def output_of(token: str, words: int) -> str:
    """The whole output of a program."""
    return "".join(f"<{token}.{place}> " for place in range(words)) + f"\n\n{MARKER}\n"


def _note(journal: Path, **entry: Any) -> None:
    # One write to the end of the file, so that lines of several processes don't mix.
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, (json.dumps(entry | {"at": time.time()}) + "\n").encode())
    os.close(file)


def _take_effect(journal: Path, name: str, token: str) -> None:
    """Take the effect of this step, unless an earlier attempt has."""
    try:
        os.close(os.open(journal.with_name(f"effect-{name}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    _note(journal, event="did", name=name, token=token)


def _leave_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(DAEMON_SECONDS)
        os._exit(0)


def main(journal: Path) -> None:
    """Do the step of the prompt."""
    found = TASK.search(sys.stdin.read())
    if found is None:
        sys.exit("There is no task.")
    name, words, pace = found[1], int(found[2]), int(found[3])
    token = uuid.uuid4().hex
    _note(journal, event="began", name=name, token=token, words=words)
    if words % LEAVES_DAEMON == 0:
        _leave_daemon()
    text = output_of(token, words)
    chunks = re.findall(r"<\S+> |[^<]+<[^<]+<[^<]+", text)
    for place, chunk in enumerate(chunks):
        sys.stdout.write(chunk)
        sys.stdout.flush()
        if place == words // 2:
            Path(name).write_text(f"{name}\n")
            _take_effect(journal, name, token)
        time.sleep(1 / pace)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

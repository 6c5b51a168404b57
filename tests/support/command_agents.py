"""Scripted commands that stand for the agents of other makers, and their configuration."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil

SCRIPT = r"""
import os, signal, sys, time
MARKER = "<promise>COMPLETE</promise>"
what, mark = sys.argv[1:3]
prompt = "" if what == "early" else sys.stdin.read()

def say(text, end="\n"):
    print(text, end=end, flush=True)

def echo():
    say(prompt)

def stream():
    say("\x1b[1;32mfirst\x1b[0m")
    sys.stdin = open(mark)  # a FIFO, which the test opens for writing
    sys.stdin.read()
    say("second\r\n\n" + MARKER)
    print("progress", file=sys.stderr)

def fail():
    say("Done.\n\n" + MARKER)
    sys.exit("it broke")

def finish():
    say("Counted the words.\n\n" + MARKER)

def limited():
    print("Error: 429 Too Many Requests. Please try again in 20s.", file=sys.stderr)
    sys.exit(1)

def lucky():
    say("fine")
    print("Error: 429 Too Many Requests", file=sys.stderr)

def mention():
    sys.exit("Cannot find '@upstash/ratelimit' in src/429.ts:429")

def invalid():
    os.write(1, b"caf\xe9 \xff\xfe\n")

def flood():
    line = "0123456789abcde\n" * 4096
    for _ in range(int(prompt) * 16):
        os.write(1, line.encode())
    say("\n" + MARKER)

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
    say("hanging")
    time.sleep(600)

def early():
    say("early")

globals()[what]()
"""


def write_commands(folder: Path, *names: str, mark: str = "", **settings: Any) -> Path:
    """Write the script and the configuration of these commands. Returns the file of the configuration."""
    script = folder / "agent.py"
    script.write_text(SCRIPT)
    commands = {
        name: {"argv": [sys.executable, "-S", str(script), name, mark], "guests": True, "killAfter": 0.3} | settings
        for name in names
    }
    more = {
        "private": {"title": "Private", "argv": [sys.executable, "-S", str(script), "echo", mark]},
        "missing": {"argv": ["no-such-program"], "guests": True},
        "short": {
            "argv": [sys.executable, "-S", str(script), "hang", mark],
            "guests": True,
            "timeout": 0.5,
            "killAfter": 0.2,
        },
        "caged": {"argv": ["cat"], "sandbox": True, "guests": True, "instructions": "Be brief."},
        "argument": {"argv": ["printf", "%s", "{prompt}"], "guests": True},
    }
    path = folder / "commands.json"
    path.write_text(json.dumps({"commands": commands | more}))
    return path


def with_mark(mark: str) -> list[int]:
    """The ids of processes with this mark in their command line, without zombies."""
    return [
        process.pid
        for process in psutil.process_iter(["pid", "cmdline", "status"])
        if mark in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]

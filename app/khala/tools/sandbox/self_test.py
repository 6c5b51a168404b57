"""Whether this machine can isolate programs, found out by doing it, and what to do where it can't."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from khala.tools.sandbox import seccomp
from khala.tools.sandbox.command import READY, build
from khala.tools.sandbox.program import Program, SandboxOptions
from khala.tools.sandbox.runtimes import ANSWER, TRIALS, candidates
from khala.tools.sandbox.sandbox_process import LAUNCH_SECONDS, MOST_COMPLAINT, SandboxSetupError, spawned

TOOL = "bwrap"
SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
INSTALL = "Install bubblewrap 0.8 or newer: `apt-get install bubblewrap`, or your system's package of that name."
TOO_OLD = ("Unknown option", "requires")
FORBIDDEN = ("namespace", "ermission", "not permitted", "Cannot fork")
ALLOW = (
    "Linux has to be 5.14 or newer, and let ordinary users make namespaces: see `sysctl user.max_user_namespaces`, "
    "`kernel.unprivileged_userns_clone` (1) and, on Ubuntu, `kernel.apparmor_restrict_unprivileged_userns` (0). "
    "In a container it takes `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`."
)


def missing() -> str | None:
    """What to install or to switch on so that code can run here, in words; None where nothing is missing."""
    if sys.platform != "linux":
        name = SYSTEMS.get(sys.platform, sys.platform)
        return f"Code runs in a sandbox, which takes Linux; this is {name}. Run the server in a Linux VM or container."
    if not seccomp.known(platform.machine()):
        return f"Code runs in a sandbox, which takes a processor of x86_64 or aarch64; this is {platform.machine()}."
    tool = found()
    if tool is None:
        return f"Code runs in a sandbox, and bubblewrap is not installed. {INSTALL}"
    if not _lists_children():
        return "The kernel doesn't say in /proc who is whose child: it needs CONFIG_PROC_CHILDREN."
    return _tried(tool)


def found() -> str | None:
    """Where the tool is that makes sandboxes."""
    return shutil.which(TOOL)


def _lists_children() -> bool:
    return Path("/proc/thread-self/children").exists()


def _tried(tool: str) -> str | None:
    """What a sandbox complains of that is set up and runs a trivial program."""
    runtime = next(candidates("shell", 0))
    program = Program(language="shell", code=TRIALS["shell"])
    try:
        process = spawned(build(tool, runtime, program, SandboxOptions()))
    except (SandboxSetupError, OSError) as error:
        return _told(str(error))
    with process:
        try:
            said, complaint = process.communicate(b"\n", timeout=LAUNCH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return _told(f"A trivial program took more than {LAUNCH_SECONDS:.0f} seconds.")
    if said == READY + ANSWER:
        return None
    return _told(complaint.decode(errors="replace")[-MOST_COMPLAINT:].strip())


def _told(complaint: str) -> str:
    told = f"No sandbox could be made: {complaint or 'nobody says why.'}"
    if any(sign in complaint for sign in TOO_OLD):
        return f"{told} {INSTALL}"
    return f"{told} {ALLOW}" if any(sign in complaint for sign in FORBIDDEN) else told

"""Tests whether this machine can isolate programs, by running one, and says what to do if it can't."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from khala.tools.sandbox import seccomp
from khala.tools.sandbox.command import READY, build
from khala.tools.sandbox.program import Program, SandboxOptions
from khala.tools.sandbox.runtimes import TEST_OUTPUT, TEST_PROGRAMS, candidates
from khala.tools.sandbox.sandbox_process import MAX_ERROR_BYTES, START_TIMEOUT_SECONDS, SandboxSetupError, spawn

TOOL = "bwrap"
SYSTEMS = {"darwin": "macOS", "win32": "Windows"}
INSTALL_ADVICE = "Install bubblewrap 0.8 or newer: `apt-get install bubblewrap`, or your system's package of that name."
TOO_OLD = ("Unknown option", "requires")
NOT_PERMITTED = ("namespace", "ermission", "not permitted", "Cannot fork")
PERMISSION_ADVICE = (
    "Linux must be 5.14 or newer, and let ordinary users create namespaces: see `sysctl user.max_user_namespaces`, "
    "`kernel.unprivileged_userns_clone` (1) and, on Ubuntu, `kernel.apparmor_restrict_unprivileged_userns` (0). "
    "In a container use `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`."
)


def missing_requirement() -> str | None:
    """Advice on what to install or enable so that programs can run here; None if nothing is missing."""
    if sys.platform != "linux":
        name = SYSTEMS.get(sys.platform, sys.platform)
        return f"The sandbox needs Linux; this is {name}. Run the server in a Linux VM or container."
    if not seccomp.supports(platform.machine()):
        return f"The sandbox needs an x86_64 or aarch64 processor; this is {platform.machine()}."
    tool = find_tool()
    if tool is None:
        return f"The sandbox needs bubblewrap, which is not installed. {INSTALL_ADVICE}"
    if not _lists_children():
        return "The sandbox needs a kernel with CONFIG_PROC_CHILDREN, which lists child processes in /proc."
    return _test(tool)


def find_tool() -> str | None:
    """The path of bubblewrap; None if it is not installed."""
    return shutil.which(TOOL)


def _lists_children() -> bool:
    return Path("/proc/thread-self/children").exists()


def _test(tool: str) -> str | None:
    """Run a trivial program in a sandbox. Returns advice if that fails."""
    runtime = next(candidates("shell", 0))
    program = Program(language="shell", code=TEST_PROGRAMS["shell"])
    try:
        process = spawn(build(tool, runtime, program, SandboxOptions()))
    except (SandboxSetupError, OSError) as error:
        return _advice(str(error))
    with process:
        try:
            output, error_output = process.communicate(b"\n", timeout=START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return _advice(f"A trivial program took more than {START_TIMEOUT_SECONDS:.0f} seconds.")
    if output == READY + TEST_OUTPUT:
        return None
    return _advice(error_output.decode(errors="replace")[-MAX_ERROR_BYTES:].strip())


def _advice(error: str) -> str:
    message = f"No sandbox could be set up: {error or 'no reason was given.'}"
    if any(sign in error for sign in TOO_OLD):
        return f"{message} {INSTALL_ADVICE}"
    return f"{message} {PERMISSION_ADVICE}" if any(sign in error for sign in NOT_PERMITTED) else message

"""The command line that makes a sandbox: what the program sees, and the limits it starts with."""

import os
import platform
from pathlib import Path

import msgspec

from khala.tools.sandbox import seccomp
from khala.tools.sandbox.program import Program, SandboxOptions
from khala.tools.sandbox.runtimes import MERGED, SYSTEM, LanguageRuntime

NOBODY = 65534
"""Who the program is, inside."""
PASSWD = b"nobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
GROUP = b"nogroup:x:65534:\n"
HOSTNAME = "sandbox"
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Without /dev/zero, of which a program could map memory that nothing counts; /dev/full reads the same."""
CODE, STDIN = "/run/code", "/run/stdin"
READY = b"ready\n"
"""What the sandbox says before it waits for the word to begin."""
SCRATCH = "/tmp"  # noqa: S108  # the sandbox's own
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "USER": "nobody",
}
LINKS = ("/etc/alternatives", "/etc/ld.so.cache")
"""Of the machine's own settings only where commands and libraries lie."""

# This is the sandbox's first process: when it goes, all go. It begins only when the server says so, and not when the
# server is gone, nor without any of its limits. It holds no more privileges than the program, and the same filter.
FIRST = """
set -e
echo ready
read -r go || exit 126
ulimit -c 0
ulimit -S -t {cpu}
ulimit -H -t {cpu_hard}
ulimit -f {file_blocks}
ulimit -n {open_files}
ulimit -d {memory}
{address_space}
ulimit -u {processes} 2>/dev/null || ulimit -p {processes}
echo 1000 > /proc/self/oom_score_adj
nice -n 10 "$@" < {stdin}
exit $?
"""


class SandboxCommand(msgspec.Struct):
    """A command line, and the descriptors that it refers to; whoever started it closes them."""

    arguments: list[str]
    descriptors: list[int]

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def build(bwrap: str, runtime: LanguageRuntime, program: Program, options: SandboxOptions) -> SandboxCommand:
    """The command for one run. The program's text and input are on no disk."""
    command = SandboxCommand([bwrap], [])
    code = f"{CODE}{runtime.suffix}"
    files = {
        "/etc/passwd": PASSWD,
        "/etc/group": GROUP,
        code: program.code.encode("utf-8", "replace"),
        STDIN: program.stdin,
    }
    _apart(command)
    _system(command)
    _own(command, options)
    for path, content in files.items():
        command.arguments += ["--perms", "0444", "--file", str(_held(command, content)), path]
    for path in runtime.shown:
        command.arguments += ["--ro-bind", path, path]
    for path in runtime.hidden:
        command.arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path in ("/dev", "/"):
        command.arguments += ["--remount-ro", path]
    command.arguments += ["--chdir", SCRATCH, "--", "/bin/sh", "-c", _first(runtime, program, options), "sandbox"]
    command.arguments += [*runtime.command, code]
    return command


def _apart(command: SandboxCommand) -> None:
    command.arguments += ["--unshare-all", "--unshare-user", "--disable-userns", "--hostname", HOSTNAME]
    command.arguments += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    command.arguments += ["--die-with-parent", "--as-pid-1", "--new-session"]
    command.arguments += ["--seccomp", str(_held(command, seccomp.compiled(platform.machine())))]


def _system(command: SandboxCommand) -> None:
    for path in (*SYSTEM, *LINKS):
        command.arguments += ["--ro-bind-try", path, path]
    for path in MERGED:
        link = Path(path)
        if link.is_symlink():
            command.arguments += ["--symlink", str(link.readlink()), path]
        else:
            command.arguments += ["--ro-bind-try", path, path]


def _own(command: SandboxCommand, options: SandboxOptions) -> None:
    """What is the sandbox's alone. It comes after the system, so that nothing of the machine's covers it."""
    command.arguments += ["--proc", "/proc", "--perms", "0755", "--size", "4096", "--tmpfs", "/dev"]
    for path in DEVICES:
        command.arguments += ["--dev-bind", path, path]
    for number, path in enumerate(("/dev/stdin", "/dev/stdout", "/dev/stderr")):
        command.arguments += ["--symlink", f"/proc/self/fd/{number}", path]
    command.arguments += ["--symlink", "/proc/self/fd", "/dev/fd"]
    for path in ("/dev/shm", SCRATCH):  # noqa: S108  # its own
        command.arguments += ["--perms", "1777", "--size", str(options.disk), "--tmpfs", path]


def _held(command: SandboxCommand, content: bytes) -> int:
    """A descriptor from which this can be read, and that the command keeps."""
    descriptor = os.memfd_create("sandbox")
    command.descriptors.append(descriptor)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _first(runtime: LanguageRuntime, program: Program, options: SandboxOptions) -> str:
    cpu = int(program.seconds) + 1
    kibibytes = (options.memory + runtime.reserves) // 1024
    return FIRST.format(
        cpu=cpu,
        cpu_hard=cpu + 1,
        file_blocks=options.file // 512,
        open_files=options.open_files,
        memory=kibibytes,
        address_space="" if runtime.reserves else f"ulimit -v {kibibytes}",
        processes=options.processes,
        stdin=STDIN,
    )

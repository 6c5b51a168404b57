"""Builds the command line of a sandbox: the files that the program sees, and the limits with which it starts."""

import os
import platform
from pathlib import Path

import msgspec

from khala.tools.sandbox import seccomp
from khala.tools.sandbox.program import Program, SandboxOptions
from khala.tools.sandbox.runtimes import MERGED, SYSTEM, LanguageRuntime

NOBODY = 65534
"""User and group id of the program inside the sandbox."""
PASSWD = b"nobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
GROUP = b"nogroup:x:65534:\n"
HOSTNAME = "sandbox"
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/zero: a program could map memory of it that is not counted. /dev/full reads the same."""
CODE, STDIN = "/run/code", "/run/stdin"
READY = b"ready\n"
"""Output of the sandbox when it is set up. It then waits for a line on its input before it starts the program."""
SCRATCH = "/tmp"  # noqa: S108  # a folder of the sandbox
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": SCRATCH,
    "TMPDIR": SCRATCH,
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "USER": "nobody",
}
LINKS = ("/etc/alternatives", "/etc/ld.so.cache")
"""The only files of the machine's /etc that a sandbox sees. They locate commands and libraries."""

# The first process of the sandbox: when it ends, all processes of the sandbox end. It starts the program only when the
# server sends a line, not if the server is gone, and not if a limit can't be set. It has no more privileges than the
# program, and the same system call filter.
INIT_SCRIPT = """
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
    """A command line and the descriptors that it refers to. The caller closes them after it starts the command."""

    arguments: list[str]
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def build(bwrap: str, runtime: LanguageRuntime, program: Program, options: SandboxOptions) -> SandboxCommand:
    """The command for one program. Its code and input are only in memory, not on a disk."""
    command = SandboxCommand([bwrap], [])
    code = f"{CODE}{runtime.suffix}"
    files = {
        "/etc/passwd": PASSWD,
        "/etc/group": GROUP,
        code: program.code.encode("utf-8", "replace"),
        STDIN: program.stdin,
    }
    _add_isolation(command)
    _add_system(command)
    _add_own_files(command, options)
    for path, content in files.items():
        command.arguments += ["--perms", "0444", "--file", str(_memory_file(command, content)), path]
    for path in runtime.shown:
        command.arguments += ["--ro-bind", path, path]
    for path in runtime.hidden:
        command.arguments += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path in ("/dev", "/"):
        command.arguments += ["--remount-ro", path]
    command.arguments += ["--chdir", SCRATCH, "--", "/bin/sh", "-c", _init_script(runtime, program, options), "sandbox"]
    command.arguments += [*runtime.command, code]
    return command


def _add_isolation(command: SandboxCommand) -> None:
    command.arguments += ["--unshare-all", "--unshare-user", "--disable-userns", "--hostname", HOSTNAME]
    command.arguments += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    command.arguments += ["--die-with-parent", "--as-pid-1", "--new-session"]
    command.arguments += ["--seccomp", str(_memory_file(command, seccomp.compile_filter(platform.machine())))]


def _add_system(command: SandboxCommand) -> None:
    for path in (*SYSTEM, *LINKS):
        command.arguments += ["--ro-bind-try", path, path]
    for path in MERGED:
        link = Path(path)
        if link.is_symlink():
            command.arguments += ["--symlink", str(link.readlink()), path]
        else:
            command.arguments += ["--ro-bind-try", path, path]


def _add_own_files(command: SandboxCommand, options: SandboxOptions) -> None:
    """Add the sandbox's own files and folders, after those of the system, so that none of these hides them."""
    command.arguments += ["--proc", "/proc", "--perms", "0755", "--size", "4096", "--tmpfs", "/dev"]
    for path in DEVICES:
        command.arguments += ["--dev-bind", path, path]
    for number, path in enumerate(("/dev/stdin", "/dev/stdout", "/dev/stderr")):
        command.arguments += ["--symlink", f"/proc/self/fd/{number}", path]
    command.arguments += ["--symlink", "/proc/self/fd", "/dev/fd"]
    for path in ("/dev/shm", SCRATCH):  # noqa: S108  # folders of the sandbox
        command.arguments += ["--perms", "1777", "--size", str(options.disk), "--tmpfs", path]


def _memory_file(command: SandboxCommand, content: bytes) -> int:
    """A descriptor of a file in memory with this content. The command owns it."""
    descriptor = os.memfd_create("sandbox")
    command.descriptors.append(descriptor)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _init_script(runtime: LanguageRuntime, program: Program, options: SandboxOptions) -> str:
    cpu = int(program.seconds) + 1
    kibibytes = (options.memory + runtime.reserved_bytes) // 1024
    return INIT_SCRIPT.format(
        cpu=cpu,
        cpu_hard=cpu + 1,
        file_blocks=options.file // 512,
        open_files=options.max_open_files,
        memory=kibibytes,
        address_space="" if runtime.reserved_bytes else f"ulimit -v {kibibytes}",
        processes=options.max_processes,
        stdin=STDIN,
    )

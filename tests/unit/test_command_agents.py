"""Command agents: their configuration, their prompts, the text of their output, and how their end is judged."""

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.chat import Message, MessageRole
from khala.domain.fold import TextBlock
from khala.domain.plans.command_results import judge_exit
from khala.runs import command_prompt
from khala.settings import SettingError, from_environment
from khala.tools.commands import Command, read_commands
from khala.tools.commands.terminal_text import MAX_SEQUENCE_CHARACTERS, TerminalText
from khala.tools.config_files import ConfigFileError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "commands.json"


def read(path: Path, content: Any, **env: str) -> dict[str, Command]:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_commands(path, env)


def test_commands_are_read_with_the_variables_that_they_name(path: Path) -> None:
    claude = {
        "title": "Claude Code", "argv": ["claude", "-p"], "env": ["TOKEN"], "folder": str(path.parent), "guests": True,
        "killAfter": 1, "timeout": 60, "concurrency": 2,
    }  # fmt: skip
    off = {"argv": ["off"], "env": ["NOT_SET"], "disabled": True}
    commands = read(path, {"commands": {"claude": claude, "off": off}}, TOKEN="t", OTHER="o")
    assert list(commands) == ["claude"]
    command = commands["claude"]
    assert command.variables == {"TOKEN": "t"}
    assert (command.agent.name, command.agent.title, command.agent.owner) == ("command:claude", "Claude Code", None)
    assert read_commands(None, {}) == {}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{", "not valid JSON"),
        ([], "the file: must be an object"),
        ({"command": {}}, "command: unknown setting"),
        ({"commands": []}, "commands: must be an object"),
        ({"commands": {"Claude": {"argv": ["x"]}}}, "commands.Claude: a name"),
        ({"commands": {"c": {}}}, "commands.c: Object missing required field `argv`"),
        ({"commands": {"c": {"argv": []}}}, "commands.c.argv: "),
        ({"commands": {"c": {"argv": "claude"}}}, "commands.c.argv: "),
        ({"commands": {"c": {"argv": ["x", "a\0b"]}}}, "commands.c.argv: NUL"),
        ({"commands": {"c": {"argv": ["x"], "git": True}}}, "commands.c.git: only a command with a folder"),
        ({"commands": {"c": {"argv": ["x"], "folder": "/", "gitAuthor": "Ada"}}}, "commands.c.gitAuthor: "),
        ({"commands": {"c": {"argv": [""]}}}, "commands.c.argv[0]: must be the program"),
        ({"commands": {"c": {"argv": ["{prompt}"]}}}, "commands.c.argv[0]: must be the program"),
        ({"commands": {"c": {"argv": ["x", "{prompt}{prompt}"]}}}, "commands.c.argv: {prompt} may occur once"),
        ({"commands": {"c": {"argv": ["x"], "timout": 5}}}, "commands.c: Object contains unknown field `timout`"),
        ({"commands": {"c": {"argv": ["x"], "timeout": 0}}}, "commands.c.timeout: "),
        ({"commands": {"c": {"argv": ["x"], "variables": {"A": "b"}}}}, "commands.c.variables: unknown setting"),
        ({"commands": {"c": {"argv": ["x"], "env": ["NOT_SET"]}}}, "commands.c.env[0]: the variable NOT_SET"),
        ({"commands": {"c": {"argv": ["x"], "env": ["A B"]}}}, "commands.c.env[0]: not the name"),
        ({"commands": {"c": {"argv": ["x"], "env": ["KHALA_SECRET"]}}}, "commands.c.env[0]: KHALA_SECRET is a setting"),
        ({"commands": {"c": {"argv": ["x"], "env": ["DATABASE_URL"]}}}, "commands.c.env[0]: DATABASE_URL is a setting"),
        ({"commands": {"c": {"argv": ["x"], "folder": "relative"}}}, "commands.c.folder: must be an absolute path"),
        ({"commands": {"c": {"argv": ["x"], "folder": "/no/such"}}}, "commands.c.folder: the folder does not exist"),
        ({"commands": {"c": {"argv": ["x"], "files": ["/etc"]}}}, "commands.c.files: only a sandboxed"),
        ({"commands": {"c": {"argv": ["x"], "sandbox": True, "folder": "/"}}}, "commands.c.folder: a sandboxed"),
        ({"commands": {"c": {"argv": ["x"], "sandbox": True, "files": ["/no/such"]}}}, "commands.c.files[0]: "),
        ({"commands": {f"c{number}": {"argv": ["x"]} for number in range(51)}}, "commands: at most 50"),
    ],
)
def test_an_error_names_the_file_and_the_field(path: Path, content: Any, place: str) -> None:
    with pytest.raises(ConfigFileError) as error:
        read(path, content, KHALA_SECRET="hush", DATABASE_URL="hush")
    assert str(error.value).startswith(f"{path}: ")
    assert place in str(error.value)
    assert "hush" not in str(error.value)


def test_a_server_does_not_start_with_a_bad_file(path: Path) -> None:
    path.write_text('{"commands": {"c": {"argv": []}}}')
    with pytest.raises(SettingError, match=r"KHALA_COMMANDS: .*commands\.json: commands\.c\.argv: "):
        from_environment({"KHALA_COMMANDS": str(path)})
    with pytest.raises(SettingError, match=r"KHALA_COMMANDS: "):
        from_environment({"KHALA_HOME": str(path.parent)})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain \xc3\xa9\ttab\n", "plain é\ttab\n"),
        (b"\x1b[1;31mred\x1b[0m \x1b[2Kcleared\x1b[?25l", "red cleared"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        (b"\x1bPq#0\x1b\\a\x1b(Bb\x1b7c\x1b=d", "abcd"),
        (b"1%\r2%\r\n3%\n", "1%\n2%\n3%\n"),
        (b"bell\x07 back\x08 nul\x00", "bell back nul"),
        (b"bad \xff\xfe \xe2\x82 end", "bad \ufffd\ufffd \ufffd end"),
        (b"end \xe2\x82", "end \ufffd"),
        (b"open \x1b[31", "open [31"),
        (b"\x1b]" + b"x" * (2 * MAX_SEQUENCE_CHARACTERS), "]" + "x" * (2 * MAX_SEQUENCE_CHARACTERS)),
    ],
)
def test_terminal_output_becomes_plain_text(data: bytes, text: str) -> None:
    terminal = TerminalText()
    assert terminal.feed(data) + terminal.end() == text


@pytest.mark.parametrize("piece", [b"\x1b", b"\x1b]", b"\x1b[1", b"\xc2\x90", b"\xc2\x9b0", b"\r", b"\x1b]0;t\x1b\\"])
def test_hostile_output_is_read_in_linear_time(piece: bytes) -> None:
    terminal = TerminalText()
    began = process_time()
    for _ in range(8):
        terminal.feed(piece * (65_536 // len(piece)))
    assert process_time() - began < 2


@given(
    pieces=st.lists(
        st.sampled_from(
            [
                b"text ",
                "é€😀".encode(),
                b"\x1b[1;31m",
                b"\x1b]0;title\x07",
                b"\x1b]8;;u\x1b\\",
                b"\x1b(B",
                b"\r\n",
                b"\r",
                b"\xff",
            ]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_however_output_is_cut_its_text_is_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    whole, cut = TerminalText(), TerminalText()
    expected = whole.feed(data) + whole.end()
    chunks = [cut.feed(data[begin:end]) for begin, end in pairwise(places)]
    assert "".join(chunks) + cut.end() == expected
    assert "\x1b" not in expected


def message(text: str, role: MessageRole = "user") -> Message:
    return Message(
        id=UUID(int=1), thread_id=UUID(int=2), role=role, status="final", seq=0, content=(TextBlock(text=text),),
        created_at=NOW, updated_at=NOW,
    )  # fmt: skip


def test_a_prompt_has_the_instructions_the_conversation_and_the_question() -> None:
    assert command_prompt.build("", [message("Hi")], max_bytes=100) == "Hi"
    history = [message("One?"), message("1", "assistant"), message("", "assistant"), message("Two?")]
    assert command_prompt.build("Be brief.", history, max_bytes=1_000) == (
        "Be brief.\n\nThe conversation so far:\n\nUser: One?\n\nAssistant: 1\n\nThe new message:\n\nTwo?"
    )


@given(st.lists(st.text(max_size=40), min_size=1, max_size=6), st.text(max_size=10), st.integers(0, 200))
def test_a_prompt_is_never_longer_than_allowed_and_keeps_the_question(
    texts: list[str], instructions: str, limit: int
) -> None:
    prompt = command_prompt.build(instructions, [message(text) for text in texts], max_bytes=limit)
    if prompt is None:
        assert len(instructions.encode() + texts[-1].encode()) + 2 > limit
    else:
        assert len(prompt.encode()) <= limit
        assert prompt.endswith(texts[-1])


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "expected"),
    [
        (0, "<promise>COMPLETE</promise>", "HTTP 429 Too Many Requests", None),
        (1, "<promise>COMPLETE</promise>", "", "failed"),
        (1, "", "Error: 429 Too Many Requests", "rate_limited"),
        (1, "Claude AI usage limit reached|1767272400", "", "rate_limited"),
        (1, "HTTP 429\n" + "work\n" * 30, "", "failed"),
        (1, "", "npm error '@upstash/ratelimit@9' not found in src/429.ts:429", "failed"),
        (137, "", "", "failed"),
    ],
)
def test_a_command_is_judged_by_its_status_first(code: int, stdout: str, stderr: str, expected: str | None) -> None:
    failure = judge_exit(code, stdout=stdout, stderr=stderr, now=NOW)
    assert (None if failure is None else failure.code) == expected


def test_a_failure_names_its_reason_and_the_time_to_wait() -> None:
    failure = judge_exit(1, stdout="", stderr="Rate limit reached. Try again in 20s.\n", now=NOW)
    assert failure is not None
    assert failure.retry_after == 20
    assert failure.message == "A rate limit was reached: Rate limit reached. Try again in 20s."
    killed = judge_exit(143, stdout="last words", stderr=" \n", now=NOW)
    assert killed is not None
    assert killed.message == "The command was killed by signal 15: last words"

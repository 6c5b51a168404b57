"""`khala dev`: how modules are imported anew, which changes count, and how deliveries are checked."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from watchfiles import Change

from khala.console import KnownFailure
from khala.dev import commands, dev_settings, new_project
from khala.dev.app_reloader import SourceFilter, explain, watched_folders
from khala.dev.delivery_log import DeliveryLog
from khala.domain.webhooks import payload, signed_headers
from khala.sdk.loading import App, AppError, load_app, reload_app
from khala.tools.port import ToolError
from khala.tools.ssrf_guard import SsrfGuardedBackend

AGENT = '''
from khala.sdk import agent
from {words} import WORD

@agent("echo")
async def echo(context) -> str:
    """Answers."""
    return WORD
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a project whose module `dev_agents` imports the module `dev_words` beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "dev_agents.py").write_text(AGENT.format(words="dev_words"))
    (tmp_path / "dev_words.py").write_text("WORD = 'one'\n")
    yield tmp_path
    for name in ("dev_agents", "dev_words"):
        sys.modules.pop(name, None)


async def said(app: App) -> str:
    """The answer of the agent."""
    return str(await app.agents["echo"].function(SimpleNamespace()))


async def test_a_module_and_what_it_imports_are_imported_anew_and_old_functions_stay(project: Path) -> None:
    app = load_app(["dev_agents"], folder=project)
    before = app.agents["echo"].function
    (project / "dev_words.py").write_text("WORD = 'two'\n")
    app.replace(reload_app(["dev_agents"], folder=project))
    assert await said(app) == "two"
    assert await before(SimpleNamespace()) == "one"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("WORD = 1 +", "dev_words.py:1: SyntaxError: invalid syntax."),
        ("\nWORD = missing", "dev_words.py:2: NameError: name 'missing' is not defined."),
        ("import sys\nsys.exit(4)", "dev_words.py:2: SystemExit: 4."),
    ],
)
async def test_an_import_that_fails_keeps_the_modules_and_names_file_and_line(
    project: Path, source: str, message: str
) -> None:
    app = load_app(["dev_agents"], folder=project)
    loaded = sys.modules["dev_agents"], sys.modules["dev_words"]
    (project / "dev_words.py").write_text(source)
    with pytest.raises(AppError) as raised:
        reload_app(["dev_agents"], folder=project)
    assert explain(raised.value, project) == message
    assert (sys.modules["dev_agents"], sys.modules["dev_words"]) == loaded
    assert await said(app) == "one"


def test_only_the_projects_own_sources_are_watched(tmp_path: Path) -> None:
    for name in ("shop", "shop/web", ".venv/lib", "web/node_modules/x", "build", "shop.egg-info", ".khala/postgres"):
        (tmp_path / name).mkdir(parents=True)
    found = {str(path.relative_to(tmp_path)) for path in watched_folders(tmp_path)}
    assert found == {".", "shop", "shop/web", "web"}
    passes = SourceFilter()
    assert passes(Change.modified, str(tmp_path / "shop" / "agents.py"))
    assert passes(Change.added, str(tmp_path / "shop"))
    assert not passes(Change.modified, str(tmp_path / "shop" / "notes.txt"))
    assert not passes(Change.added, str(tmp_path / "build"))


def test_a_delivery_counts_as_signed_only_with_the_webhooks_secret() -> None:
    lines: list[str] = []
    log = DeliveryLog(lines.append)
    log.secrets = (b"secret",)
    body = payload("run.finished", datetime.now(UTC), {})
    headers = {name.decode(): value.decode() for name, value in signed_headers("msg_1", 1, body, [b"secret"])}
    assert log.receive(headers, body)
    assert not log.receive(headers, body + b" ")
    assert not log.receive({}, b"[]")
    assert [one.type for one in log.after(1)] == ["(no event)", "run.finished"]
    assert lines[0] == "webhook  run.finished  msg_1"
    assert lines[1].endswith("(the signature is wrong)")
    log.receive({"webhook-id": "\x9b2J"}, b'{"type":"\\u001b]0;x\\u0007' + b"y" * 10_000 + b'"}')
    assert lines[3].isprintable()
    assert len(lines[3]) < 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_a_loopback_address_is_safe(host: str) -> None:
    assert dev_settings.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.3", "example.com", ""])
def test_another_address_is_not(host: str) -> None:
    assert not dev_settings.is_loopback(host)


@pytest.mark.parametrize("name", ["", "Shop", "9shop", "my_shop", "-x", "x-", "a--b", "../x", "a/b", "x" * 61])
def test_a_bad_name_of_a_project_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(KnownFailure, match="cannot be a project's name"):
        new_project.create(name, tmp_path)


@pytest.mark.parametrize("name", ["json", "agents", "khala", "khala-server"])
def test_the_name_of_another_package_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(KnownFailure, match="name of another package"):
        new_project.create(name, tmp_path)


def test_the_npm_packages_are_built_in_a_checkout_before_a_project_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, packed = tmp_path / "build.py", tmp_path / "packed"
    monkeypatch.setattr(new_project, "IN_WHEEL", tmp_path / "none")
    monkeypatch.setattr(new_project, "BUILDER", builder)
    monkeypatch.setattr(new_project, "IN_CHECKOUT", packed)
    with pytest.raises(KnownFailure, match=r"could not be built. It needs Node\.js"):
        new_project.create("shop", tmp_path)
    assert not (tmp_path / "shop").exists()
    builder.write_text(
        f"import pathlib, sys\nassert sys.argv[1:] == ['build']\nfolder = pathlib.Path({str(packed)!r})\n"
        "folder.mkdir()\n[(folder / f'khala-{name}-1.2.3.tgz').write_bytes(b'') for name in ('client', 'react')]\n"
    )
    folder = new_project.create("shop", tmp_path)
    assert sorted(path.name for path in (folder / "web" / "vendor").iterdir()) == [
        "khala-client-1.2.3.tgz",
        "khala-react-1.2.3.tgz",
    ]


async def test_an_allowed_endpoint_is_one_address_and_one_port() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return [host]

    guard = SsrfGuardedBackend((), resolve, [(IPv4Address("127.0.0.1"), 8001)])
    assert await guard.is_in_allowed_network("127.0.0.1", 8001)
    assert await guard.is_in_allowed_network("::ffff:127.0.0.1", 8001)
    for host, port in (("127.0.0.1", 8000), ("127.0.0.2", 8001), ("10.0.0.1", 8001)):
        with pytest.raises(ToolError, match="KHALA_FETCH_ALLOW"):
            await guard.is_in_allowed_network(host, port)


@pytest.mark.parametrize("is_in_path", [True, False])
def test_a_new_project_names_the_program_as_the_person_can_call_it(
    *, is_in_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "khala"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent) if is_in_path else str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program), "new", "shop"])
    monkeypatch.setattr(new_project, "create", lambda name, parent: parent / name)
    done = CliRunner().invoke(commands.new, ["shop"])
    assert done.output.splitlines()[-1] == (f"  {'khala' if is_in_path else program} dev")

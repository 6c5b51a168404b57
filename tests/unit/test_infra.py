"""The files for operators are valid for their tools, and agree with Khala's settings."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from khala import main, settings
from khala.api.ag_ui import routes as ag_ui
from khala.api.ai_sdk.routes import MAX_CHAT_BODY_BYTES
from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.api.imports.imports import MAX_EXPORT_BYTES
from khala.api.openai.request_body import MAX_COMPLETION_BODY_BYTES
from khala.api.plans.plans import MAX_PLAN_BODY_BYTES
from khala.api.threads import feed_reader
from khala.version import KHALA_VERSION
from tests.support.nginx import SHIPPED, rendered
from tests.support.required_programs import program
from tests.support.server import ROOT

INFRA = ROOT / "infra"
CLIENTS = ROOT / "app" / "clients" / "typescript"
BIN = Path(sys.executable).parent
UNITS = sorted((INFRA / "systemd").iterdir())
MANIFESTS = sorted((INFRA / "kubernetes").iterdir())
OLDEST_KUBERNETES = "1.32"
TOLD = [INFRA / "Dockerfile", INFRA / "compose.yaml", SHIPPED, *UNITS, *MANIFESTS]
DEFAULTS = settings.from_environment({})
ENDING = 2 * main.CLOSE_TIMEOUT_SECONDS + 2
"""Seconds that a process needs after its drain and its grace, to be sure."""


def accepts(*command: str | Path) -> None:
    """Assert that the program succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe").load_all(path))


def of_kind(kind: str) -> list[Any]:
    found = [document for path in MANIFESTS for document in documents(path) if document["kind"] == kind]
    assert found
    return found


def test_hadolint_accepts_the_dockerfile() -> None:
    accepts(BIN / "hadolint", INFRA / "Dockerfile")


def test_the_compose_file_fits_its_schema() -> None:
    accepts(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", INFRA / "compose.yaml")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(path: Path) -> None:
    accepts(BIN / "kubernetes-validate", "--strict", "-k", OLDEST_KUBERNETES, path)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    # The program must exist.
    runnable = text.replace("/opt/khala/bin/khala", sys.executable).replace("file:/opt/khala/README.md", f"file:{ROOT}")
    assert text.count("/opt/khala/bin/khala") == 1
    unit = tmp_path / path.name
    unit.write_text(runnable)
    accepts(program("systemd-analyze"), "verify", unit)


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(rendered(8080, [8001, 8002], tmp_path))
    accepts(program("nginx"), "-t", "-q", "-c", file, "-e", tmp_path / "error.log")


def test_shells_accept_the_scripts() -> None:
    for script in INFRA.glob("*.sh"):
        accepts("sh", "-n", script)


def test_images_are_pinned_by_version() -> None:
    texts = [path.read_text() for path in TOLD]
    images = [image for text in texts for image in re.findall(r"^(?: +image:|FROM) (\S+)", text, re.MULTILINE)]
    assert len(images) > 8
    assert not [image for image in images if ":" not in image or image.endswith(":latest")]


def test_the_version_of_the_project_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(path.read_text() for path in TOLD)
    assert set(re.findall(r"(?:image: |-t )khala:(\S+)", text)) == {project["version"]}
    packages = [json.loads((CLIENTS / name / "package.json").read_text()) for name in ("client", "react")]
    assert {package["version"] for package in packages} == {project["version"]}
    assert packages[1]["peerDependencies"]["@khala/client"] == project["version"]
    assert f"\n## [{project['version']}] - 20" in (ROOT / "CHANGELOG.md").read_text()


def test_the_image_has_the_version_of_the_package() -> None:
    texts = [path.read_text() for path in TOLD]
    tags = {tag for text in texts for tag in re.findall(r"\bkhala:(\d[\w.]*)", text)}
    assert tags == {KHALA_VERSION}


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.name)
def test_settings_are_those_of_the_documentation(path: Path) -> None:
    documented = (ROOT / "docs" / "configuration.md").read_text()
    named = set(re.findall(r"\b(?:KHALA_[A-Z_]+|DATABASE_[A-Z_]*URL|BLOB_URL)\b", path.read_text()))
    assert not {name for name in named if f"`{name}`" not in documented}


def test_nginx_accepts_bodies_up_to_the_limit_of_khala() -> None:
    found = [int(number) << 20 for number in re.findall(r"client_max_body_size (\d+)m;", SHIPPED.read_text())]
    uploads, chats = DEFAULTS.blobs.max_upload_bytes, max(MAX_CHAT_BODY_BYTES, ag_ui.MAX_BODY_BYTES)
    of_paths = [uploads, MAX_PLAN_BODY_BYTES, chats, MAX_EXPORT_BYTES, MAX_COMPLETION_BODY_BYTES]
    assert found == [MAX_BODY_BYTES, *of_paths]


def test_nginx_waits_longer_than_khala_is_ever_silent() -> None:
    waits = [int(number) for number in re.findall(r"proxy_(?:read|send)_timeout (\d+)s;", SHIPPED.read_text())]
    assert waits
    assert min(waits) > 2 * feed_reader.KEEP_ALIVE_INTERVAL_SECONDS


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_gives_runs_and_requests_their_time(path: Path) -> None:
    text = path.read_text()
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    drain = sum(map(int, re.findall(r"KHALA_DRAIN_SECONDS=(\d+)", text)))
    grace = 0 if "--no-executor" in text else DEFAULTS.runs.grace_seconds
    assert int(limit) > drain + grace + ENDING


def test_kubernetes_gives_runs_and_requests_their_time() -> None:
    (config_map,) = of_kind("ConfigMap")
    for deployment in of_kind("Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        works = "work" in container["args"]
        time = float(config_map["data"]["KHALA_GRACE_SECONDS" if works else "KHALA_DRAIN_SECONDS"])
        assert pod["terminationGracePeriodSeconds"] > time + ENDING


def test_compose_gives_runs_and_requests_their_time() -> None:
    (compose,) = documents(INFRA / "compose.yaml")
    for name in ("web-1", "web-2", "worker"):
        service = compose["services"][name]
        drain, grace = (float(service["environment"][f"KHALA_{word}_SECONDS"]) for word in ("DRAIN", "GRACE"))
        assert float(service["stop_grace_period"].removesuffix("s")) > drain + grace + ENDING


def test_processes_ended_by_the_watchdog_are_restarted() -> None:
    for unit in UNITS:
        text = unit.read_text()
        assert re.findall(r"^Restart=(.+)$", text, re.MULTILINE) == ["always"]
        # Exit codes in these settings would prevent a restart.
        assert not re.search(r"^(?:SuccessExitStatus|RestartPreventExitStatus)=", text, re.MULTILINE)
    (compose,) = documents(INFRA / "compose.yaml")
    assert {compose["services"][name]["restart"] for name in ("web-1", "web-2", "worker")} == {"unless-stopped"}
    for deployment in of_kind("Deployment"):
        assert deployment["spec"]["template"]["spec"].get("restartPolicy", "Always") == "Always"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_restarts_without_a_start_limit(path: Path) -> None:
    # By default a unit fails for good after five starts in ten seconds.
    assert "StartLimit" not in path.read_text()
    assert DEFAULTS.process.watchdog_seconds > 10 / 5


def test_pods_are_found_by_what_selects_them() -> None:
    for deployment in of_kind("Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        component = labels["app.kubernetes.io/component"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        budgets = [document["spec"]["selector"]["matchLabels"] for document in of_kind("PodDisruptionBudget")]
        assert [budget for budget in budgets if budget["app.kubernetes.io/component"] == component] == [labels]
    (service,) = of_kind("Service")
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "web"


def test_files_that_the_image_needs_are_not_ignored() -> None:
    ignored = (INFRA / "Dockerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)
    for path in " ".join(copied).split():
        assert f"!{path}" in ignored
        assert (ROOT / path).exists()


def test_no_program_is_installed_if_all_are_present() -> None:
    program("nginx")
    done = subprocess.run(["sh", INFRA / "services.sh", "nginx"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_unknown_program_is_refused() -> None:
    done = subprocess.run(["sh", INFRA / "services.sh", "delphi"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "delphi" in done.stderr

"""The conformance checks of the executor protocol: the Python and the TypeScript worker pass, a bad one does not."""

import asyncio
import subprocess
import sys
from pathlib import Path

from khala_client.conformance import Conformance
from tests.support.server import ROOT

CLIENTS = ROOT / "app" / "clients"
TYPESCRIPT = CLIENTS / "typescript"
COMPILERS = [folder / "node_modules" / ".bin" / "tsc" for folder in (TYPESCRIPT, CLIENTS.parent / "web")]


async def test_our_worker_conforms() -> None:
    conformance = Conformance([sys.executable, str(CLIENTS / "python" / "examples" / "conformance_worker.py")])
    passed = await asyncio.to_thread(conformance.run)
    assert passed, conformance.table()


async def test_the_typescript_worker_is_well_typed_and_conforms(tmp_path: Path) -> None:
    compiler = next(tsc for tsc in COMPILERS if tsc.exists())
    options = "--target es2022 --module esnext --moduleResolution bundler --lib ES2023,DOM,DOM.Iterable --strict"
    checks = "--noUncheckedIndexedAccess --exactOptionalPropertyTypes --noImplicitOverride --verbatimModuleSyntax"
    output = f"--rewriteRelativeImportExtensions --rootDir {TYPESCRIPT} --outDir {tmp_path}"
    source = TYPESCRIPT / "examples" / "worker" / "conformance.ts"
    command = [str(compiler), *options.split(), *checks.split(), *output.split(), "--skipLibCheck", str(source)]
    compiled = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stdout
    (tmp_path / "package.json").write_text('{"type": "module"}')
    conformance = Conformance(["node", str(tmp_path / "examples" / "worker" / "conformance.js")])
    passed = await asyncio.to_thread(conformance.run)
    assert passed, conformance.table()


async def test_a_worker_that_conforms_in_nothing_fails_the_checks(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text(
        "import json, os, time, urllib.request as u\n"
        "def post(path, **body):\n"
        "    head = {'Authorization': 'Bearer ' + os.environ['KHALA_TOKEN'], 'Content-Type': 'application/json'}\n"
        "    data = json.dumps(body).encode()\n"
        "    request = u.Request(os.environ['KHALA_SERVER'] + '/api/executor/' + path, data, head)\n"
        "    return json.load(u.urlopen(request))\n"
        "(run,) = post('claim', claimId='x', agents=['conformance'], waitSeconds=20)['runs']\n"
        "part = {'kind': 'text-delta', 'data': {'text': 'hm'}}\n"
        "post('runs/' + run['runId'] + '/parts', epoch=1, seq=0, parts=[part])\n"
        "post('runs/' + run['runId'] + '/finish', epoch=1, seq=1, status='completed')\n"
        "time.sleep(600)\n"
    )
    conformance = Conformance([sys.executable, str(source)], timeout_seconds=0.5)
    assert not await asyncio.to_thread(conformance.run)
    passed = [name for name, problem in conformance.results if not problem]
    assert passed == ["claims runs of its agent, and waits for them", "sends well-formed requests"]

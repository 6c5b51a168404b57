"""The command `llm`, with a model of its file `extra-openai-models.yaml`."""

import base64
import json
import os
import signal
import subprocess
from pathlib import Path

from cells import (
    BASE_URL,
    PNG,
    PROVIDER_MODEL,
    SPENT_TOKEN,
    TOKEN,
    WORDS,
    Result,
    absent,
    cell,
    is_canceled,
    run,
    works,
)  # fmt: skip

LLM = str(Path(os.environ["BIN"]) / "llm")
HOME = Path(os.environ["LLM_USER_PATH"])
ENTRY = """- model_id: {id}
  model_name: "{name}"
  api_base: {url}
  api_key_name: {key}
  supports_schema: true
  supports_tools: true
  vision: true
  headers: {{x-cancel-on-disconnect: "true"}}
"""
MODELS = (
    ("khala", "khala", "khala"), ("local", PROVIDER_MODEL, "khala"), ("none", "gpt-none", "khala"),
    ("spent", "khala", "spent"),
)  # fmt: skip
entries = (ENTRY.format(id=alias, name=name, url=BASE_URL, key=key) for alias, name, key in MODELS)
(HOME / "extra-openai-models.yaml").write_text("".join(entries))
(HOME / "keys.json").write_text(json.dumps({"khala": TOKEN, "spent": SPENT_TOKEN}))


def llm(*words, fails=False):
    done = subprocess.run(
        [LLM, *words], capture_output=True, text=True, timeout=50, stdin=subprocess.DEVNULL, check=False
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr.strip() if fails or "-u" in words else done.stdout.strip()


@cell("text")
def text() -> Result:
    assert llm("-m", "khala", "/echo En taro Adun") == "En taro Adun"
    assert llm("-c", "/echo And Tassadar") == "And Tassadar"
    return works("Also with `-c`, which sends the conversation again.")


@cell("stream")
def stream() -> None:
    assert llm("-m", "local", "/words=5") == WORDS


@cell("tools")
def tools() -> None:
    code = "def weather(city: str) -> str:\n    'Tells the weather.'\n    return 'sunny in ' + city"
    shown = llm("-m", "khala", "--functions", code, '/call weather {"city": "Aiur"}')
    assert "sunny in Aiur" in shown


absent("forced", "The client has no option for it.")


@cell("structured")
def structured() -> None:
    found = json.loads(llm("-m", "khala", "--schema", "name, population int", "Which is the largest city?"))
    assert (type(found["name"]), type(found["population"])) == (str, int)


@cell("images")
def images() -> None:
    image = HOME / "a.png"
    image.write_bytes(base64.b64decode(PNG.split(",")[1]))
    assert "image/png" in llm("-m", "khala", "-a", str(image), "Look.")


@cell("usage")
def usage() -> Result:
    shown = llm("-m", "khala", "-u", "/words=7 /pace=0")
    assert "7 output" in shown, shown
    return works("With `-u`.")


@cell("cancel")
def cancel() -> Result:
    prompt = "/words=2000 /pace=50"
    with subprocess.Popen([LLM, "-m", "khala", prompt], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)
    assert is_canceled(prompt)
    return works("Ctrl-C, with the header `x-cancel-on-disconnect: true` in the file.")


absent("resume", "The client has no request that continues a stream.")
absent("approvals", "The client asks for approval of its own tools, with `--ta`.")


@cell("errors")
def errors() -> Result:
    return works("", llm("-m", "none", "Hello", fails=True), llm("-m", "spent", "Hello", fails=True))


run()

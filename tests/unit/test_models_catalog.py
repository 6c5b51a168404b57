"""Names of models and settings of providers."""

import subprocess
import sys
from collections.abc import Mapping

import msgspec
import pytest

from khala.models import failures, model_names, provider_registry
from khala.models.demo.model import DemoModel
from khala.models.model_names import DEMO, BadModelError, ModelRef
from khala.models.openai import request_body
from khala.models.openai.model import ChatModel
from khala.models.openai.request_body import ChatQuirks
from khala.models.port import Prompt, PromptTurn
from khala.models.provider_registry import PROVIDERS, ProviderAccess, ProviderSpec
from khala.models.providers import ProviderConfig, Providers
from khala.settings import definitions, from_environment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("openai:gpt-5-mini", ModelRef("openai", "gpt-5-mini")),
        (" anthropic : claude-sonnet-5-5 ", ModelRef("anthropic", "claude-sonnet-5-5")),
        ("openai:llama3:8b-instruct", ModelRef("openai", "llama3:8b-instruct")),
        ("google:models/gemini", ModelRef("google", "models/gemini")),
        ("demo", DEMO),
        ("demo:anything", DEMO),
    ],
)
def test_a_reference_is_read_and_written_back(text: str, expected: ModelRef) -> None:
    assert model_names.parse(text) == expected
    assert model_names.parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "gpt-5-mini", "mistral:large", ":x", "OpenAI:gpt"])
def test_an_unknown_provider_is_reported_with_the_choices(text: str) -> None:
    with pytest.raises(BadModelError, match="anthropic:NAME, openai:NAME, google:NAME or demo"):
        model_names.parse(text)


@pytest.mark.parametrize("text", ["openai", "openai:", "google: "])
def test_a_missing_model_name_is_reported_with_an_example(text: str) -> None:
    with pytest.raises(BadModelError, match="write for example"):
        model_names.parse(text)


@pytest.mark.parametrize(
    ("env", "provider"),
    [
        ({}, "demo"),
        ({"OPENAI_API_KEY": "k"}, "openai"),
        ({"GEMINI_API_KEY": "k"}, "google"),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "anthropic"),
        ({"OPENAI_API_KEY": "k", "KHALA_MODEL": "demo"}, "demo"),
        ({"OPENAI_API_KEY": ""}, "demo"),
        ({"OPENAI_BASE_URL": "http://localhost:1"}, "demo"),
    ],
)
def test_the_default_model_depends_on_the_configured_keys(env: Mapping[str, str], provider: str) -> None:
    assert from_environment(env).model_chain[0].provider == provider


def test_the_chain_is_the_default_and_its_fallbacks_without_repetition() -> None:
    env = {"KHALA_MODEL": "openai:a", "KHALA_FALLBACK_MODELS": "google:b, openai:a,,demo,"}
    assert from_environment(env).model_chain == (ModelRef("openai", "a"), ModelRef("google", "b"), DEMO)


def test_settings_are_read_from_the_names_the_providers_use() -> None:
    env = {
        "OPENAI_BASE_URL": "http://localhost:1/v1",
        "ANTHROPIC_API_KEY": "a",
        "ANTHROPIC_BASE_URL": "http://localhost:2",
        "GOOGLE_API_KEY": "g",
        "GEMINI_API_KEY": "ignored",
        "KHALA_MODEL_TIMEOUT": "30",
    }
    config = from_environment(env).provider_config
    openai = config.connection("openai")
    assert (openai.key, openai.url) == ("none", "http://localhost:1/v1")
    assert config.access["anthropic"] == ProviderAccess(key="a", url="http://localhost:2")
    assert config.access["google"] == ProviderAccess(key="g")
    assert (config.connect_timeout, config.read_timeout) == (10.0, 30.0)
    assert from_environment({}).provider_config == ProviderConfig()


@pytest.mark.parametrize(("ref", "name"), [("openai:x", "OPENAI_API_KEY"), ("google:x", "GEMINI_API_KEY")])
def test_a_missing_key_is_reported_when_the_model_is_opened(ref: str, name: str) -> None:
    with pytest.raises(BadModelError, match=name):
        Providers(ProviderConfig()).open(ref)


def test_keys_are_not_in_the_text_of_settings() -> None:
    settings = from_environment({"OPENAI_API_KEY": "sk-very-secret"})
    config = settings.provider_config
    assert config.access["openai"].key == "sk-very-secret"
    assert "sk-very-secret" not in f"{settings} {settings!r} {config} {config.access['openai']!r}"
    assert "sk-very-secret" not in f"{config.connection('openai')!r}"


def test_organization_and_project_are_read_with_the_key_and_kept_without_one() -> None:
    env = {"OPENAI_BASE_URL": "http://localhost:1/v1", "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"}
    expected = ProviderAccess(key="none", url="http://localhost:1/v1", organization="org-1", project="proj-1")
    assert from_environment(env).provider_config.connection("openai").access == expected


def test_a_vendor_with_openais_protocol_needs_only_a_table_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    acme = ProviderSpec(
        name="acme",
        label="Acme",
        default_model="acme-large",
        url="https://api.acme.example/v1",
        key_variables=("ACME_API_KEY",),
        quirks=ChatQuirks(max_tokens_field="max_tokens", stream_usage=False),
    )
    monkeypatch.setitem(provider_registry.PROVIDERS, "acme", acme)
    settings = from_environment({"ACME_API_KEY": "sk-very-secret"})
    assert settings.model_chain == (ModelRef("acme", "acme-large"),)
    assert isinstance(Providers(settings.provider_config).open("acme:acme-small"), ChatModel)
    assert settings.provider_config.connection("acme").url == "https://api.acme.example/v1"
    assert ("ACME_API_KEY",) in [definition.variables for definition in definitions()]
    assert failures.from_kind(failures.INVALID_KEY, "acme", midstream=False).message == "Acme rejected the API key."
    prompt = Prompt(system="", turns=(PromptTurn(role="user", text="?"),), max_output_tokens=7)
    body = msgspec.json.decode(request_body.encode(prompt, "acme-small", acme.quirks))
    assert (body["max_tokens"], body.get("max_completion_tokens"), body.get("stream_options")) == (7, None, None)


async def test_the_demo_model_needs_no_key() -> None:
    providers = Providers(ProviderConfig())
    assert isinstance(providers.open("demo"), DemoModel)
    await providers.aclose()


def test_provider_libraries_are_not_imported_before_a_model_is_opened() -> None:
    code = (
        "import sys; from khala.models import providers, token_counter, prices, retry_policy, model_names\n"
        "from khala.models.demo import model\n"
        "providers.Providers(providers.ProviderConfig()).open('demo')\n"
        "heavy = {'openai', 'anthropic', 'google.genai', 'pydantic_ai', 'tiktoken', 'genai_prices', 'httpx2',"
        " 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_models_need_no_library_of_a_provider(provider: str) -> None:
    code = (
        "import sys; from khala.models.provider_registry import ProviderAccess\n"
        "from khala.models.providers import ProviderConfig, Providers\n"
        f"Providers(ProviderConfig(access={{'{provider}': ProviderAccess(key='k')}})).open('{provider}:any')\n"
        "libraries = {'openai', 'anthropic', 'google.genai', 'pydantic', 'pydantic_ai', 'httpx2'}\n"
        "print(sorted(libraries & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

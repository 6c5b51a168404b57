"""Names of models and settings of providers."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from khala.models import model_names
from khala.models.demo.model import DemoModel
from khala.models.model_names import DEMO, BadModel, ModelRef
from khala.models.providers import Access, Providers, ProviderSettings


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
def test_an_unknown_provider_is_told_with_the_choices(text: str) -> None:
    with pytest.raises(BadModel, match="openai:NAME, anthropic:NAME, google:NAME or demo"):
        model_names.parse(text)


@pytest.mark.parametrize("text", ["openai", "openai:", "google: "])
def test_a_missing_name_is_told_with_an_example(text: str) -> None:
    with pytest.raises(BadModel, match="write for example"):
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
def test_the_default_follows_the_keys(env: Mapping[str, str], provider: str) -> None:
    assert model_names.default(env).provider == provider


def test_the_chain_is_the_default_and_its_fallbacks_without_repetition() -> None:
    env = {"KHALA_MODEL": "openai:a", "KHALA_FALLBACK_MODELS": "google:b, openai:a,,demo,"}
    assert model_names.chain(env) == (ModelRef("openai", "a"), ModelRef("google", "b"), DEMO)


def test_settings_are_read_from_the_names_the_providers_use() -> None:
    env = {
        "OPENAI_BASE_URL": "http://localhost:1/v1",
        "ANTHROPIC_API_KEY": "a",
        "ANTHROPIC_BASE_URL": "http://localhost:2",
        "GOOGLE_API_KEY": "g",
        "GEMINI_API_KEY": "ignored",
        "KHALA_MODEL_TIMEOUT": "30",
    }
    settings = ProviderSettings.from_environment(env)
    assert settings.access("openai") == Access(key="none", url="http://localhost:1/v1")
    assert settings.anthropic == Access(key="a", url="http://localhost:2")
    assert settings.google == Access(key="g")
    assert (settings.connect_timeout, settings.read_timeout) == (10.0, 30.0)
    assert ProviderSettings.from_environment({}) == ProviderSettings()


@pytest.mark.parametrize("given", ["0", "-1", "soon", "inf", "nan"])
def test_a_timeout_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="KHALA_MODEL_TIMEOUT"):
        ProviderSettings.from_environment({"KHALA_MODEL_TIMEOUT": given})


@pytest.mark.parametrize(("ref", "name"), [("openai:x", "OPENAI_API_KEY"), ("google:x", "GEMINI_API_KEY")])
def test_a_missing_key_is_told_when_the_model_is_opened(ref: str, name: str) -> None:
    with pytest.raises(BadModel, match=name):
        Providers(ProviderSettings()).open(ref)


def test_keys_do_not_show() -> None:
    settings = ProviderSettings.from_environment({"OPENAI_API_KEY": "sk-very-secret"})
    assert "sk-very-secret" not in f"{settings} {settings!r} {settings.openai!r}"


def test_who_pays_is_read_with_the_key_and_kept_without_one() -> None:
    env = {"OPENAI_BASE_URL": "http://localhost:1/v1", "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"}
    expected = Access(key="none", url="http://localhost:1/v1", organization="org-1", project="proj-1")
    assert ProviderSettings.from_environment(env).access("openai") == expected


async def test_the_demo_model_needs_no_key() -> None:
    providers = Providers(ProviderSettings())
    assert isinstance(providers.open("demo"), DemoModel)
    await providers.aclose()


def test_provider_libraries_are_not_imported_before_a_model_is_opened() -> None:
    code = (
        "import sys; from khala.models import providers, token_counter, prices, retry_policy, model_names\n"
        "from khala.models.demo import model\n"
        "providers.Providers(providers.ProviderSettings()).open('demo')\n"
        "heavy = {'openai', 'anthropic', 'google.genai', 'pydantic_ai', 'tiktoken', 'genai_prices', 'httpx2',"
        " 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_openai_models_need_no_library_of_a_provider() -> None:
    code = (
        "import sys; from khala.models.providers import Access, Providers, ProviderSettings\n"
        "Providers(ProviderSettings(openai=Access(key='k'))).open('openai:any')\n"
        "print(sorted({'openai', 'pydantic', 'pydantic_ai', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

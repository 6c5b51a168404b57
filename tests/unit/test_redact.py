"""Text that looks like a secret is redacted before a model receives it again; all other text stays unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.redaction import REDACTED, redacted

SECRET = "abcDEF0123456789abcDEF0123456789"

SECRETS = [
    (f"sk-{SECRET}", REDACTED),
    (f"sk-proj-{SECRET}_-x", REDACTED),
    (f"key: sk-ant-{SECRET}!", f"key: {REDACTED}!"),
    (f"khala_{SECRET}", REDACTED),
    (f"ghp_{SECRET}", REDACTED),
    (f"github_pat_{SECRET}", REDACTED),
    ("xoxb-1234567890-abc", REDACTED),
    ("AKIAIOSFODNN7EXAMPLE", REDACTED),
    (f"AIza{SECRET}", REDACTED),
    (f"glpat-{SECRET}", REDACTED),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", REDACTED),
    (f"Authorization: Bearer {SECRET}", f"Authorization: Bearer {REDACTED}"),
    (f"authorization: basic {SECRET}==", f"authorization: basic {REDACTED}"),
    ("postgres://zeratul:hunter2@db:5432/khala", f"postgres://zeratul:{REDACTED}@db:5432/khala"),
    ("redis://:hunter2@cache:6379", f"redis://:{REDACTED}@cache:6379"),
    ("https://user:p%40ss@example.com/a?b", f"https://user:{REDACTED}@example.com/a?b"),
    ("password=hunter2secret", f"password={REDACTED}"),
    ("password: hunter2", f"password: {REDACTED}"),
    ("PASSWORD = 'hunter2'", f"PASSWORD = '{REDACTED}'"),
    ('{"password": "hunter2"}', f'{{"password": "{REDACTED}"}}'),
    ('{"password": "two words"}', f'{{"password": "{REDACTED}"}}'),
    ('{"client_secret":"x;y,z&1"}', f'{{"client_secret":"{REDACTED}"}}'),
    ("password='a long, winding pass phrase'", f"password='{REDACTED}'"),
    (
        r'{"text": "{\"password\": \"hunter2\", \"colour\": 1}"}',
        rf'{{"text": "{{\"password\": \"{REDACTED}\", \"colour\": 1}}"}}',
    ),
    (r'{"password": "hun\"ter2", "colour": 1}', f'{{"password": "{REDACTED}", "colour": 1}}'),
    ("DB_PASSWORD=hunter2\ncolour=green", f"DB_PASSWORD={REDACTED}\ncolour=green"),
    ("export OPENAI_API_KEY=abcdefgh", f"export OPENAI_API_KEY={REDACTED}"),
    ("api-key: abcdefgh", f"api-key: {REDACTED}"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG+bPx", f"AWS_SECRET_ACCESS_KEY={REDACTED}"),
    ("?token=abcdefgh&page=2", f"?token={REDACTED}&page=2"),
    ("x-api-key: abcdefgh", f"x-api-key: {REDACTED}"),
    ("a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb", f"a\n{REDACTED}\nb"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\ncut off", REDACTED),
    ("-----BEGIN PRIVATE KEY-----\\nMII\\n-----END PRIVATE KEY-----\\n", f"{REDACTED}\\n"),
]
PLAIN = [
    "",
    "The next train leaves at noon.",
    "password",
    "The password is wrong.",
    "Forgot your password?",
    "Enter a password: ",
    "tokens: 12",
    '{"max_tokens": 4096, "inputTokens": 12345}',
    "secretary: Zeratul",
    "tokenizer: cl100k_base",
    "Keys and tokens are kept in the safe.",
    "https://example.com:8080/path@v1",
    "https://example.com/user@host",
    "mail zeratul@example.com",
    "git@github.com:owner/repo.git",
    "12:30, 13:45",
    "bearer of news",
    "basic arithmetic",
    "sk-short",
    "skill-set-of-a-developer",
    "risk-assessment-of-the-project",
    "eyJ is how such tokens begin",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "def read(path: str) -> str: ...",
    "0123456789abcdef0123456789abcdef01234567",
    "秘密 password です",
]


@pytest.mark.parametrize(("text", "kept"), SECRETS)
def test_a_secret_is_redacted_and_the_text_around_it_stays(text: str, kept: str) -> None:
    assert redacted(text) == kept


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(("text", "_"), SECRETS)
def test_redacted_text_stays_redacted(text: str, _: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


pieces = st.sampled_from(
    ["password", "=", ":", " ", "'", '"', "\n", "://", "@", "a", "sk-", SECRET, "-----BEGIN PRIVATE KEY-----",
     "Bearer ", "eyJ", ".", "token", "_", "-", "\0", "é", "\ud800"]
)  # fmt: skip


@given(st.text() | st.lists(pieces, max_size=30).map("".join))
def test_any_text_can_be_redacted_and_lines_without_secrets_stay(text: str) -> None:
    found = redacted(f"first\n{text}")
    assert found.startswith("first\n")


@given(st.text(st.sampled_from("abcdefghij \n.,!?()[]"), max_size=200))
def test_prose_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


@given(st.lists(pieces, max_size=10).map("".join), st.lists(st.sampled_from(["x", " ", "\n"]), max_size=5).map("".join))
def test_a_key_is_always_redacted(before: str, after: str) -> None:
    key = f"sk-{SECRET[::-1]}"
    assert key not in redacted(f"{before} {key} {after}")


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-", "eyJ.", "eyJaaaaaaaa.", "sk-", "sk-aaaaaaaaaaaaaaaa-", "password", "password-", "password:",
        "password='", "token.", "a-", "a.", "a:", "bearer ", "basic\n", "://a:", "a://b:c:",
        "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----END A", "x", " ", "\\", '\\"', "'",
    ],
)  # fmt: skip
def test_an_adversarial_long_text_is_redacted_in_linear_time(piece: str) -> None:
    """A redaction in quadratic time would not end before the test's own timeout."""
    text = piece * (200_000 // len(piece))
    assert len(redacted(text)) <= len(text) + len(text) * len(REDACTED)

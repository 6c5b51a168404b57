"""Redacts secrets in tool outputs before a later prompt repeats them."""

import re

REDACTED = "[redacted]"

# These patterns match in linear time: no unbounded repetition is followed by something that may fail, unless no match
# can begin within the repetition.
_TOKENS = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|khala_[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,})"
)
_BLOCKS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_BEARERS = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{12,}")
_NAMED = re.compile(
    r"(?i)((?:password|passwd|secret(?!ar)|token(?!s\b|_?count|i[sz])|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential)[\w-]{0,64}\\?[\"']?\s{0,20}[:=]\s{0,20})"
    r"(?:(\\?[\"'])(?:(?!\2)(?:\\.|[^\n]))+|[^\s\"',;&]{4,})"
)
_IN_URLS = re.compile(r"(://[^\s:/@]{0,256}:)[^\s/@]{1,256}(@)")


def redacted(text: str) -> str:
    """The text with everything that looks like a key, token or password redacted."""
    text = _BLOCKS.sub(REDACTED, text)
    text = _TOKENS.sub(REDACTED, text)
    text = _BEARERS.sub(rf"\1\2{REDACTED}", text)
    text = _IN_URLS.sub(rf"\1{REDACTED}\2", text)
    return _NAMED.sub(lambda match: f"{match[1]}{match[2] or ''}{REDACTED}", text)

"""Accessibility of the page: axe's rules, keyboard use, and screen readers."""

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import expect

from tests.system.browser import Chat, open_card

pytestmark = pytest.mark.timeout(120)

AXE = Path(__file__).parents[2] / "app" / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
STILL = """document.getAnimations().filter(({ timeline }) => timeline === document.timeline).every(
    (one) => one.playState !== "running" || one.effect.getTiming().iterations === Infinity)"""
"""Those that are driven by scrolling never end, and move only with it."""
RICH = (
    "/say # A heading\\n\\nSome *text*, `code`, a [link](https://example.com).\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |"
)


BLOCKS = """> [!WARNING]
> Check the token.

<details open><summary>More at https://example.com[^1]</summary>

- words

</details>

[^1]: A note.

Some words that follow, until the connection is lost.
"""


def axe_violations(chat: Chat) -> list[str]:
    """The violations that axe finds on the page, after all animations have ended."""
    chat.page.evaluate(AXE.read_text())
    chat.page.wait_for_function(STILL)
    script = "(tags) => axe.run(document, { runOnly: tags }).then(({ violations }) => violations)"
    violations: list[dict[str, Any]] = chat.page.evaluate(script, RULES)
    return [
        f"{violation['id']}: {node['html'][:200]} ({node['failureSummary']})"
        for violation in violations
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_a_chat_with_cards_and_an_approval(chat: Chat, scheme: Literal["light", "dark"]) -> None:
    chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    assert axe_violations(chat) == []
    chat.send(RICH)
    chat.wait_for_end()
    chat.send(f"/pace=0 /fail=90 /echo {BLOCKS}")
    chat.wait_for_end()
    expect(chat.button("Try again")).to_be_visible()
    assert axe_violations(chat) == []
    chat.with_autopilot()
    chat.send(
        '/call write_file {"path":"a.txt","content":"hi"} /call nonsense {} /then /call delete_file {"path":"a.txt"}'
    )
    expect(chat.card("delete_file")).to_have_attribute("data-state", "blocked")
    chat.card("delete_file").get_by_role("button", name="Details").click()
    assert axe_violations(chat) == []
    chat.card("delete_file").get_by_role("button", name="Edit input").click()
    assert axe_violations(chat) == []
    chat.button("Stop").click()
    chat.wait_for_end()
    head = chat.page.locator(".group-head").first
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    open_card(chat.card("write_file"))
    assert axe_violations(chat) == []


def test_everything_can_be_reached_by_keyboard_and_escape_restores_the_focus(chat: Chat) -> None:
    skip = chat.page.get_by_role("link", name="Skip to messages")
    skip.focus()
    expect(skip).to_be_in_viewport(ratio=1)
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("region", name="Messages")).to_be_focused()
    skip.focus()
    names: set[str] = set()
    for _ in range(40):
        chat.page.keyboard.press("Tab")
        names.add(
            chat.page.evaluate(
                "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
            )
        )
    assert {"New chat", "Sign in", "Share", "Add files and more"} <= names
    chat.button("Share").focus()
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.button("Share")).to_be_focused()


def test_the_beginning_and_the_end_of_an_answer_are_announced_and_no_token(chat: Chat) -> None:
    chat.page.evaluate(
        """() => {
            window.heard = [];
            const region = document.querySelector("#announce");
            const hear = () => window.heard.push(region.textContent);
            new MutationObserver(hear).observe(region, { childList: true, characterData: true, subtree: true });
        }"""
    )
    chat.send("/words=150 /pace=100")
    chat.wait_for_end()
    announced = [text for text in chat.page.evaluate("window.heard") if text]
    assert 1 <= len(announced) <= 4
    assert "word1 word2" in announced[-1]
    assert chat.page.locator("#messages [aria-live]:not([aria-live=off])").count() == 0

// @vitest-environment jsdom
import { describe, expect, it, vi } from "vitest";

import { followFootnote } from "./footnotes.ts";
import { IncrementalParser } from "./incremental-markdown.ts";
import { renderTokens, tokenize } from "./markdown.ts";
import { MarkdownView } from "./markdown-view.ts";
import { sanitizeHtml } from "./sanitize.ts";

/** A hostile text is read within this time. */
const PATIENCE_MS = 5000;

function box(text: string): HTMLElement {
  const element = document.createElement("div");
  element.append(sanitizeHtml(renderTokens(tokenize(text))));
  return element;
}

describe("an alert", () => {
  it.each(["note", "tip", "important", "warning", "caution"])("is a %s with its title and its text", (kind) => {
    const alert = box(`> [!${kind.toUpperCase()}]\n> Some **words**.\n>\n> - more`).querySelector(`.alert.${kind}[role=note]`);
    expect(alert?.querySelector(".alert-title")?.textContent.toLowerCase()).toBe(kind);
    expect(alert?.querySelector("strong")?.textContent).toBe("words");
    expect(alert?.querySelector("li")?.textContent).toBe("more");
    expect(alert?.textContent).not.toContain("[!");
  });

  it("is a quotation with any other mark", () => {
    expect(box("> [!ELSE]\n> x").querySelector("blockquote")?.textContent).toContain("[!ELSE]");
    expect(box("> [!NOTE] x").querySelector(".alert")).toBeNull();
  });
});

describe("details", () => {
  it("have a summary and Markdown in them, and more details", () => {
    const element = box("Before\n\n<details>\n<summary>The *title*</summary>\n\n- an item\n\n```js\nlet a;\n```\n\n<details open>\n<summary>Inner</summary>\nwords\n</details>\n\n</details>\n\nAfter");
    expect(element.querySelector("details > summary > em")?.textContent).toBe("title");
    expect(element.querySelector("details > ul > li")?.textContent).toBe("an item");
    expect(element.querySelector("details > .code code")?.textContent).toBe("let a;");
    expect(element.querySelector("details > details[open]")?.textContent).toContain("words");
    expect(element.lastElementChild?.textContent).toBe("After");
  });

  it("are open until they end, and take no other attribute", () => {
    expect(box("<details>\n<summary>T</summary>\n\nwords").querySelector("details")?.textContent).toContain("words");
    // A summary is a button, which can have no links in it.
    const linked = box("<details>\n<summary>See https://example.com, [*that*](https://example.com) and a note[^1]</summary>\n\n[words](https://example.com)\n</details>");
    expect(linked.querySelector("summary")?.innerHTML).toBe("See https://example.com, <em>that</em> and a note<sup>1</sup>");
    expect(linked.querySelectorAll("a")).toHaveLength(1);
    expect(box("<details ontoggle=alert(1)>\n\nx\n\n</details>").querySelector("details")).toBeNull();
    expect(box("<details><summary><img src=x onerror=alert(1)></summary>x</details>").querySelector("img")).toBeNull();
  });

  it("have a code block in them while they grow", () => {
    const text = "<details>\n<summary>T</summary>\n\n```js\nlet a;\n```\n\nwords\n";
    const pieces = new IncrementalParser().parse(text, false);
    expect(pieces.map(({ kind }) => kind)).toEqual(["prose"]);
  });

  it("stay as the person has opened them while they grow", () => {
    const element = document.body.appendChild(document.createElement("div"));
    const [view, parser] = [new MarkdownView(element), new IncrementalParser()];
    view.update(parser.parse("<details>\n<summary>T</summary>\n\nsome words", false));
    const details = element.querySelector("details");
    if (details) details.open = true;
    view.update(parser.parse("<details>\n<summary>T</summary>\n\nsome words and more", false));
    expect([element.querySelector("details") === details, details?.open, details?.textContent]).toEqual([true, true, expect.stringContaining("and more")]);
  });
});

describe("a footnote", () => {
  it("has a reference that leads to it", () => {
    const element = document.body.appendChild(box("A claim.[^1] Another.[^b]\n\n[^1]: The *first* note\n    goes on.\n[^b]: https://example.com"));
    expect([...element.querySelectorAll(".footnote-reference")].map(({ textContent }) => textContent)).toEqual(["1", "b"]);
    const notes = [...element.querySelectorAll<HTMLElement>(".footnote")];
    expect(notes.map(({ textContent }) => textContent.replace(/\s+/g, " "))).toEqual(["1 The first note goes on.", "b https://example.com"]);
    for (const note of notes) note.scrollIntoView = vi.fn();
    element.addEventListener("click", (event) => followFootnote(event, element));
    element.querySelectorAll<HTMLElement>(".footnote-reference")[1]?.click();
    expect(document.activeElement).toBe(notes[1]);
  });

  it("leaves brackets alone", () => {
    expect(box("[^ a] x[^] [^1").textContent).toBe("[^ a] x[^] [^1");
    expect(box("see [a^1](https://example.com)").querySelectorAll("a")).toHaveLength(1);
  });
});

describe("what is made to take long", () => {
  const many = (text: string, count = 10_000): string => text.repeat(count);
  it.each([
    ["footnotes", Array.from({ length: 10_000 }, (_, at) => `[^${at}]: note\n`).join("")],
    ["references", many("[^1] ")],
    ["notes that go on", `[^1]: a\n${many("  b\n")}`],
    ["details", many("<details>\n")],
    ["nested details", `${many("<details>\n\n", 3000)}x${many("\n</details>", 3000)}`],
    ["details side by side", many("<details><summary>a</summary>b</details>\n\n", 2500)],
    ["summaries", `<details>${many("<summary>")}`],
    ["alerts", many("> [!NOTE]\n> a\n\n", 5000)],
    ["nested alerts", many("> ", 90) + "[!NOTE]\n"],
  ])("%s are read soon", (_, text) => {
    const begin = performance.now();
    expect(renderTokens(tokenize(text.slice(0, 100_000))).length).toBeGreaterThan(0);
    expect(performance.now() - begin).toBeLessThan(PATIENCE_MS);
  }, 30_000);
});

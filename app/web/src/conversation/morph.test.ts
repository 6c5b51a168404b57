// @vitest-environment jsdom
import { describe, expect, it } from "vitest";

import { MarkdownView } from "./markdown-view.ts";
import { morph } from "./morph.ts";
import { IncrementalParser } from "./incremental-markdown.ts";

function box(html: string): HTMLElement {
  const element = document.createElement("div");
  element.innerHTML = html;
  return element;
}

describe("a morph", () => {
  it.each([
    ["<p>a</p>", "<p>ab</p>"],
    ["<p>a</p>", "<p>b</p><ul><li>c</li></ul>"],
    ["<p>a <b>c</b></p><p>d</p>", "<p>a</p>"],
    ['<p class="x" title="y">a</p>', '<p class="z">a</p>'],
    ["", "text"],
    ["text", ""],
  ])("makes %j look like %j", (from, to) => {
    const element = box(from);
    morph(element, box(to));
    expect(element.innerHTML).toBe(to);
  });

  it("keeps the nodes that only grew", () => {
    const element = box("<p>one <b>two</b> thr</p>");
    const [first, , last] = element.querySelector("p")?.childNodes ?? [];
    morph(element, box("<p>one <b>two</b> three</p>"));
    const nodes = [...(element.querySelector("p")?.childNodes ?? [])];
    expect([nodes[0] === first, nodes[2] === last]).toEqual([true, true]);
  });
});

describe("a drawing", () => {
  const TEXT = "# Head\n\nOne paragraph of words.\n\n```js\nlet a;\n```\n\n- a list of things\n- with two of them\n\nThe last paragraph.";

  it("shows at its end what is drawn at once, and never touches what is settled", () => {
    const [grown, whole] = [box(""), box("")];
    const parser = new IncrementalParser();
    const view = new MarkdownView(grown);
    const seen: Element[] = [];
    for (let length = 1; length <= TEXT.length; length++) {
      const pieces = parser.parse(TEXT.slice(0, length), false);
      view.update(pieces);
      for (const [at, { settled }] of pieces.entries()) {
        const element = grown.children[at];
        if (!settled || !element) continue;
        seen[at] ??= element;
        expect(element).toBe(seen[at]);
      }
    }
    view.update(parser.parse(TEXT, true));
    new MarkdownView(whole).update(new IncrementalParser().parse(TEXT, true));
    expect(grown.innerHTML).toBe(whole.innerHTML);
    expect(seen.length).toBeGreaterThan(3);
    expect(seen.every((element) => grown.contains(element))).toBe(true);
  });

  it("shows a plain text exactly, at every step", () => {
    const host = box("");
    const parser = new IncrementalParser();
    const view = new MarkdownView(host);
    const words = Array.from({ length: 500 }, (_, at) => `word${at + 1}`).join(" ");
    for (let length = 1; length <= words.length; length += 11) {
      view.update(parser.parse(words.slice(0, length), false));
      expect(host.textContent.trim()).toBe(words.slice(0, length).trim());
    }
    view.update(parser.parse(words, true));
    expect(host.textContent).toBe(words);
  });

  it("goes from a text to a shorter one", () => {
    const host = box("");
    const view = new MarkdownView(host);
    view.update(new IncrementalParser().parse(TEXT, true));
    view.update(new IncrementalParser().parse("One", true));
    expect(host.innerHTML).toBe('<div class="piece"><p dir="auto">One</p></div>');
  });

  it("has no markup from text that is shown as it is", () => {
    const host = box("");
    const parser = new IncrementalParser();
    const view = new MarkdownView(host);
    const text = `${"word ".repeat(8000)}<img src=x onerror=alert(1)>`;
    for (let length = 1000; length < text.length + 1000; length += 1000) view.update(parser.parse(text.slice(0, length), false));
    expect(host.querySelector("img")).toBeNull();
    expect(host.textContent).toContain("<img src=x");
  });
});

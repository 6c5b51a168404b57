// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { IncrementalParser } from "./incremental-markdown.ts";
import { MarkdownView } from "./markdown-view.ts";

const TEXT = `# Head

One paragraph of **strong words**, *soft ones*, \`code\` and [a link](https://example.com/), 👩‍👩‍👧‍👦 and e\u0301.

| a | b |
|---|--:|
| first | 1 |
| second | 2 |

\`\`\`js
let a = "👍🏽";
\`\`\`

- a list of things
- with two of them

---

> A quotation of $x^2$.

The last paragraph.
`;

function box(): HTMLElement {
  return document.body.appendChild(document.createElement("div"));
}

function drawn(text: string, isComplete: boolean): string {
  const element = box();
  new MarkdownView(element).update(new IncrementalParser().parse(text, isComplete));
  return element.textContent;
}

beforeEach(() => vi.stubGlobal("matchMedia", () => ({ matches: false })));
afterEach(() => vi.unstubAllGlobals());

describe("a view that is revealed", () => {
  it.each([[10, 1], [30, 2], [100, 3], [1000, 5]])("shows only beginnings of what is shown at once (%i at a time)", (chunk, step) => {
    const [element, parser] = [box(), new IncrementalParser()];
    const view = new MarkdownView(element);
    for (let end = chunk; end < TEXT.length + chunk; end += chunk) {
      view.update(parser.parse(TEXT.slice(0, end), false), false);
      const whole = drawn(TEXT.slice(0, end), false);
      let before = -1;
      for (let turn = 0; view.pending > 0 && turn < 5000; turn++) {
        expect(whole.startsWith(element.textContent)).toBe(true);
        expect(element.textContent.length).toBeGreaterThanOrEqual(before);
        before = element.textContent.length;
        view.reveal(step + (turn % 40)); // a long character needs more at once
      }
      expect(element.textContent).toBe(whole);
    }
    view.update(parser.parse(TEXT, true));
    const once = box();
    new MarkdownView(once).update(new IncrementalParser().parse(TEXT, true));
    expect(element.innerHTML).toBe(once.innerHTML);
  });

  it("keeps the nodes that only grow, so that a selection survives", () => {
    const [element, parser] = [box(), new IncrementalParser()];
    const view = new MarkdownView(element);
    view.update(parser.parse("One **two** thr", false), false);
    view.reveal(Infinity);
    const [first, second, third] = element.querySelector("p")?.childNodes ?? [];
    view.update(parser.parse("One **two** three and four", false), false);
    view.reveal(4);
    expect(element.textContent).toBe("One two three a");
    expect([...(element.querySelector("p")?.childNodes ?? [])]).toEqual([first, second, third]);
    expect(element.querySelector("p")?.firstChild).toBe(first);
  });

  it("shows a row of a table as a whole, and no piece before its turn", () => {
    const [element, parser] = [box(), new IncrementalParser()];
    const view = new MarkdownView(element);
    view.update(parser.parse("| a | b |\n|---|---|\n| one | two |\n\nAfter it all comes this.", false), false);
    view.reveal(3); // line ends between the elements count, too
    expect(element.querySelectorAll("tr")).toHaveLength(1);
    expect(element.textContent).not.toContain("After");
    view.reveal(8);
    expect(element.querySelectorAll("tr")).toHaveLength(2);
  });
});

describe("a reveal", () => {
  const frames: FrameRequestCallback[] = [];
  const run = (now: number): void => frames.splice(0).forEach((act) => act(now));

  beforeEach(() => {
    frames.length = 0;
    vi.useFakeTimers();
    vi.stubGlobal("requestAnimationFrame", (act: FrameRequestCallback) => frames.push(act));
    vi.stubGlobal("cancelAnimationFrame", () => frames.splice(0));
  });
  afterEach(() => vi.useRealTimers());

  async function begun(): Promise<{ element: HTMLElement; show: (text: string, isComplete?: boolean) => void; end: () => void }> {
    const { TextReveal } = await import("./text-reveal.ts");
    const [element, parser] = [box(), new IncrementalParser()];
    const reveal = new TextReveal(new MarkdownView(element));
    return { element, show: (text, isComplete = false) => reveal.update(parser.parse(text, isComplete), isComplete), end: () => reveal.destroy() };
  }

  it("shows the first text at once and the next bit by bit, except for the last character until nothing follows", async () => {
    const { element, show, end } = await begun();
    show("First");
    expect(element.textContent).toBe("First");
    show("First and much more.");
    expect(element.textContent).toBe("First");
    run(performance.now() + 100);
    expect(element.textContent.length).toBeGreaterThan(5);
    expect(element.textContent.length).toBeLessThan(15);
    run(performance.now() + 1000);
    expect(element.textContent).toBe("First and much more");
    expect(frames).toHaveLength(0);
    vi.advanceTimersByTime(1000);
    expect(element.textContent).toBe("First and much more.");
    end();
  });

  it("is at most a chunk behind, and shows everything when the answer ends or the tab is hidden", async () => {
    const { element, show, end } = await begun();
    show("One");
    show("One, two");
    show("One, two, three");
    expect(element.textContent).toBe("One, two");
    vi.spyOn(document, "hidden", "get").mockReturnValue(true);
    document.dispatchEvent(new Event("visibilitychange"));
    expect(element.textContent).toBe("One, two, three");
    show("One, two, three, four");
    expect(element.textContent).toBe("One, two, three, four");
    vi.restoreAllMocks();
    show("One, two, three, four, five");
    expect(element.textContent).toBe("One, two, three, four");
    show("One, two, three, four, five.", true);
    expect(element.textContent).toBe("One, two, three, four, five.");
    expect(frames).toHaveLength(0);
    end();
  });
});

import { describe, expect, it } from "vitest";

import { tokenize, renderTokens } from "./markdown.ts";
import { dollarFormula } from "./math.ts";
import { withoutPartialEnd } from "./partial-markdown.ts";
import { IncrementalParser } from "./incremental-markdown.ts";

/** As long as a message may be. */
const LENGTH = 100_000;
/** Of the processor. What is here took between ten seconds and for ever; what is read in good time takes a fraction of this. */
const MAX_CPU_MS = 5000;
/** The time on the clock says more about what else the machine does. */
const PATIENCE = { timeout: 120_000 };

/** What Node.js has beyond a browser, for which the page is checked. */
declare const process: { cpuUsage: () => { user: number; system: number } };

/** The processor's time that this process has taken, in milliseconds. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

const full = (text: string): string => text.repeat(Math.ceil(LENGTH / text.length)).slice(0, LENGTH);

describe("what is made to take long", PATIENCE, () => {
  it.each(["**a_", "_a", "***a", "![", "[a](", "\\[a\n\n", "\\[a\n", "\\(a", "$$a\\", "$a ", "a\n-\n", "a\n\n", "> ", ">", "a.", " ", "a\n***\n"])(
    "is read soon: %j",
    (part) => {
      const text = `x${full(part)}@`;
      const begin = cpuMs();
      renderTokens(tokenize(text));
      expect(cpuMs() - begin).toBeLessThan(MAX_CPU_MS);
    },
  );

  it("is read soon where it is a price, or the spaces before a word that has not come", () => {
    const begin = cpuMs();
    expect(dollarFormula(`$1${",".repeat(4000)}(x$`)).not.toBeNull();
    expect(dollarFormula(`$1${",".repeat(4000)} to 2$`)).toBeNull();
    expect(withoutPartialEnd(`${full(" ")}x`)).toHaveLength(LENGTH + 1);
    expect(cpuMs() - begin).toBeLessThan(MAX_CPU_MS);
  });

  it("is read soon while it grows", () => {
    const text = full("**a_");
    const parser = new IncrementalParser();
    const begin = cpuMs();
    for (let end = 0; end < text.length; end += 1000) parser.parse(text.slice(0, end), false);
    parser.parse(text, true);
    expect(cpuMs() - begin).toBeLessThan(2 * MAX_CPU_MS);
  });

  it("is shown as it is, and what is beside it as ever", () => {
    const html = renderTokens(tokenize(`${full("**a_")}\n\nand **this**`));
    expect(html).toContain("**a_**a_");
    expect(renderTokens(tokenize(`${"a".repeat(5000)}\n\nand **this**`))).toContain("<strong>this</strong>");
    expect(html.length).toBeGreaterThan(LENGTH);
  });
});

describe("a long answer of an ordinary kind", () => {
  it("has its emphasis to the end", () => {
    const text = full("Some words of which **a few** are strong, and `one` is [a link](https://example.com/). ".repeat(8) + "\n\n");
    expect(renderTokens(tokenize(text)).match(/<strong>/g)?.length).toBe(text.match(/\*\*a few\*\*/g)?.length);
  });
});

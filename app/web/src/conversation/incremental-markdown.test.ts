import { describe, expect, it } from "vitest";

import { IncrementalParser } from "./incremental-markdown.ts";
import type { Piece } from "./incremental-markdown.ts";

const DOCUMENT = `# Heading

First paragraph with **strong**, *emphasis*, \`code\` and a [link](https://example.com/a).
It has a second line.

- one item of a list
- another, with a nested one
  - nested
- [x] a task

1. first
2. second

   \`\`\`js
   inside();
   \`\`\`

| a | b |
|---|--:|
| 1 | 2 |
| 3 | 4 |

\`\`\`python
def f():
    return "\`\`"

print(f())
\`\`\`
After the code, at once.

~~~
tildes
\`\`\`
~~~

> A quotation
> of two lines.

$$
x^2 + y^2
$$

The end.
`;

/** What the pieces show, without how they are cut. */
function shown(pieces: readonly Piece[]): string {
  return pieces.map((piece) => (piece.kind === "code" ? `[${piece.language}]${piece.text}` : piece.html + piece.rest)).join("\n");
}

function cuts(text: string, size: number): string[] {
  return Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(0, size * (at + 1)));
}

function atTheEnd(text: string): readonly Piece[] {
  return new IncrementalParser().parse(text, true);
}

describe("a text that is read while it grows", () => {
  it.each([1, 3, 7, 40, 1000])("shows at its end what the whole shows, %i letters at a time", (size) => {
    const parser = new IncrementalParser();
    let last: readonly Piece[] = [];
    for (const text of cuts(DOCUMENT, size)) last = parser.parse(text, false);
    expect(shown(last)).toBe(shown(atTheEnd(DOCUMENT)));
    expect(shown(parser.parse(DOCUMENT, true))).toBe(shown(atTheEnd(DOCUMENT)));
  });

  it("never changes a piece that is settled", () => {
    const parser = new IncrementalParser();
    let before: readonly Piece[] = [];
    for (const text of cuts(DOCUMENT, 2)) {
      const pieces = parser.parse(text, false);
      const settled = before.filter((piece) => piece.settled);
      expect(pieces.slice(0, settled.length).every((piece, at) => piece === settled[at])).toBe(true);
      before = pieces;
    }
    expect(before.filter((piece) => piece.settled).length).toBeGreaterThan(8);
  });

  it("takes lines that end as on Windows, wherever they are cut", () => {
    const parser = new IncrementalParser();
    const text = DOCUMENT.replaceAll("\n", "\r\n");
    let last: readonly Piece[] = [];
    for (const cut of cuts(text, 3)) last = parser.parse(cut, false);
    expect(shown(last)).toBe(shown(atTheEnd(DOCUMENT)));
  });

  it("begins anew with another text", () => {
    const parser = new IncrementalParser();
    parser.parse("Something else.\n\nWith two paragraphs that are long.\n\nAnd", false);
    expect(shown(parser.parse("Hello", false))).toBe("<p>Hello</p>");
  });

  it("shows an open fence as code to its end, without the half of a closing one", () => {
    const [piece] = new IncrementalParser().parse("```ts\nlet a = 1;\n``", false);
    expect(piece).toEqual({ kind: "code", language: "ts", text: "let a = 1;", settled: false });
  });

  it("shows what came of a long paragraph at once, though it is not read at each step", () => {
    const parser = new IncrementalParser();
    const words = Array.from({ length: 4000 }, (_, at) => `word${at + 1}`).join(" ");
    for (const text of cuts(words, 61)) {
      const plain = parser.parse(text, false).map((piece) => (piece.kind === "code" ? "" : piece.html.replace(/<\/?p>/g, "") + piece.rest)).join("");
      expect(text.startsWith(plain) && text.length - plain.length < 2).toBe(true);
    }
  });

  it.each([
    ["**bold te", "<p><strong>bold te</strong></p>"],
    ["a `code", "<p>a <code>code</code></p>"],
    ["see [the docs](https://exa", "<p>see the docs</p>"],
    ["A line\n\n| a | b |\n|--", "<p>A line</p>"],
    ["A list:\n\n- one of\n-", "<p>A list:</p>\n<ul>\n<li>one of</li>\n</ul>"],
    ["5 * 3 is `", "<p>5 * 3 is `</p>"],
  ])("closes what is open at the end of %j", (text, html) => {
    expect(shown(new IncrementalParser().parse(text, false))).toBe(html);
  });

  it("shows a table as soon as its second row says that it is one", () => {
    expect(shown(new IncrementalParser().parse("| a | b |\n|---|---|\n| 1", false))).toContain("<td>1</td>");
  });
});

const LONG = 60_000;

describe("the work of reading", () => {
  const many = (block: string, long = LONG): string => block.repeat(Math.ceil(long / block.length)).slice(0, long);
  const texts: [string, string][] = [
    ["mixed Markdown", many(DOCUMENT, 200_000)],
    ["one paragraph", many("word after word ")],
    ["one list", many("- an item of a list that never ends\n")],
    ["one numbered list", many("1. an item\n")],
    ["one table", `| a | b |\n|---|---|\n${many("| one cell | another |\n")}`],
    ["one block of code", `\`\`\`\n${many("let it = be;\n")}`],
    ["code in a list", `- item\n  \`\`\`\n${many("  let it = be;\n")}`],
    ["quotation", many("> and on it goes\n")],
  ];

  it.each(texts)("is less than three times the length of %s", (_, text) => {
    const parser = new IncrementalParser();
    for (const part of cuts(text, Math.ceil(text.length / 2000))) parser.parse(part, false);
    parser.parse(text, true);
    expect(parser.tokenizedCharacters).toBeLessThan(3 * text.length);
  }, 30_000);
});

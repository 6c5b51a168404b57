import { describe, expect, it } from "vitest";

import { cutBefore, lastCharacterLength } from "./graphemes.ts";

const FAMILY = "👩‍👩‍👧‍👦";

describe("a cut", () => {
  it.each([
    ["plain words", 5, 5],
    ["a👍🏽b", 2, 1],
    ["a👍🏽b", 4, 1],
    ["a👍🏽b", 5, 5],
    [`x${FAMILY}y`, FAMILY.length, 1],
    ["e\u0301e\u0301", 3, 2],
    ["a\r\nb", 2, 1],
    ["🇩🇪🇫🇷🇮🇹", 6, 4],
  ])("of %j before %i is at %i", (text, to, at) => {
    expect(cutBefore(text, 0, to)).toBe(at);
  });

  it("splits nothing, wherever it is wanted, and gets to the end", () => {
    const text = `one ${FAMILY} two e\u0301 🇩🇪🇫🇷 ${"🇩🇪".repeat(200)} हिन्दी 한국어 z\u0301\u0302\u0303 \ud83d\ude00\n`;
    const ends = new Set([...new Intl.Segmenter().segment(text)].map(({ index, segment }) => index + segment.length));
    for (const size of [1, 2, 3, 7, 50]) {
      let [shown, wanted] = [0, 0];
      while (shown < text.length) {
        wanted += size;
        shown = cutBefore(text, shown, Math.max(wanted, shown));
        expect(shown === 0 || ends.has(shown)).toBe(true);
        expect(shown).toBeLessThanOrEqual(Math.max(wanted, 0));
        if (wanted > 2 * text.length) throw new Error("It stands still.");
      }
    }
  });
});

describe("the last character", () => {
  it.each([["", 0], ["ab", 1], [`a${FAMILY}`, FAMILY.length], ["e\u0301", 2], ["a\ud83d", 1]])("of %j has %i units", (text, length) => {
    expect(lastCharacterLength(text)).toBe(length);
  });
});

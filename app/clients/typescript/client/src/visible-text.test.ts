import { describe, expect, test } from "vitest";

import { escapeInvisible, markInvisible, visibleJson, withoutInvisible } from "./visible-text.ts";

/** Examples of each class; each is checked by itself. */
const CLASSES: Record<string, readonly number[]> = {
  "controls of direction": [0x061c, 0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069],
  "zero-width characters": [0x200b, 0x200c, 0x200d, 0x2060, 0xfeff, 0x034f, 0x180e],
  "invisible operators and format controls": [0x2061, 0x2064, 0x206a, 0x206f, 0xfff9, 0xfffb, 0x1bca0, 0x1d173, 0x13430],
  tags: [0xe0001, 0xe0020, 0xe0041, 0xe007e, 0xe007f],
  "variation selectors": [0xfe00, 0xfe0e, 0xfe0f, 0xe0100, 0xe01ef, 0x180b, 0x180f],
  "blank letters": [0x115f, 0x1160, 0x17b4, 0x17b5, 0x3164, 0xffa0, 0x2800, 0xfffc, 0x13441, 0x16fe4, 0x1d159],
  "soft hyphen": [0x00ad],
  "separators and other spaces": [0x2028, 0x2029, 0x00a0, 0x1680, 0x2000, 0x2009, 0x202f, 0x205f],
  controls: [0x0000, 0x0007, 0x0008, 0x001b, 0x007f, 0x0085, 0x009f],
  "characters without a meaning": [0xe000, 0xf8ff, 0xfdd0, 0xffff, 0xf0000, 0x10ffff],
};
const EMOJI = ["❤️", "👨‍👩‍👧", "👩🏽‍🚀", "🏳️‍🌈", "1️⃣", "🧔‍♂️", "🇵🇹", "☕"];
const WORDS = ["plain text", "Grüße, naïve, Ω", "日本語のファイル", "שלום עולם", "مرحبا بالعالم", "नमस्ते", "한국어", "a\tb\nc", "a\r\nb", "…—“x”€"];

describe.each(Object.entries(CLASSES))("%s", (_, codes) => {
  test.each(codes.map((code) => [`U+${code.toString(16)}`, String.fromCodePoint(code)]))("%s is escaped in JSON, named in text, and left out of names", (_name, character) => {
    const json = visibleJson({ [`k${character}`]: `a${character}b` });
    expect(json).toMatch(/^[ -~\n]*$/);
    expect(json).toMatch(/a\\[ub].*b"/);
    expect(JSON.parse(json)).toEqual({ [`k${character}`]: `a${character}b` });
    expect(markInvisible(`a${character}b`)).toMatch(/^a⟨U\+[0-9A-F]{4,6}⟩b$/);
    expect(withoutInvisible(`a${character}b`)).toMatch(/^a ?b$/);
  });
});

test("a lone surrogate is escaped, a pair is not", () => {
  expect(escapeInvisible('"\ud800x"')).toBe('"\\ud800x"');
  expect([markInvisible("\udc00"), escapeInvisible('"😀"')]).toEqual(["⟨U+DC00⟩", '"😀"']);
});

test("a lone carriage return is a control, the one of a line break is not", () => {
  expect(markInvisible("a\rb\r\nc\r")).toBe("a⟨U+000D⟩b\r\nc\r");
});

test("emoji stay as they are in text and names, but not in JSON to approve", () => {
  for (const emoji of EMOJI) expect([markInvisible(`a${emoji}b`), withoutInvisible(`a${emoji}b`)]).toEqual([`a${emoji}b`, `a${emoji}b`]);
  expect(visibleJson("❤️")).toBe('"❤\\ufe0f"');
});

test("the ideographic space is escaped in JSON only: elsewhere its width is seen", () => {
  expect([visibleJson("a\u3000b"), markInvisible("a\u3000b"), withoutInvisible("a\u3000b")]).toEqual(['"a\\u3000b"', "a\u3000b", "a b"]);
});

test("joiners and selectors outside emoji are no part of them", () => {
  expect(markInvisible("a\u200db 😀\u200dc 😀\ufe0f\ufe0f")).toBe("a⟨U+200D⟩b 😀⟨U+200D⟩c 😀\ufe0f⟨U+FE0F⟩");
});

test.each(WORDS)("%s is not changed", (words) => {
  expect([escapeInvisible(words), markInvisible(words)]).toEqual([words, words]);
});

test("the name of a file is one line without what would reverse it", () => {
  expect(withoutInvisible("invoice\u202egpj.exe")).toBe("invoicegpj.exe");
  expect(withoutInvisible(" Screenshot\u202f10.00\n.png\u200b")).toBe("Screenshot 10.00 .png");
  expect(withoutInvisible("\u3164\u200b")).toBe("");
});

import { describe, expect, it, vi } from "vitest";

import { excerptOf, foundLocally, mergeFound, searchServer, type FoundMessage } from "./message-search.ts";

const message = (messageId: string, isExact: boolean): FoundMessage => ({ threadId: "t", messageId, title: null, snippet: "", ranges: [], isExact, isByMeaning: false });
const ids = (found: readonly FoundMessage[]): string[] => found.map(({ messageId }) => messageId);

describe("mergeFound", () => {
  it("adds exact matches of this browser to those of the server, and nothing that is only similar", () => {
    const server = [message("42", true), message("117", false)];
    const local = [message("now", true), message("42", true), message("41", false)];
    expect(ids(mergeFound(server, local, 9))).toEqual(["42", "now", "117"]);
    expect(ids(mergeFound(server, local, 2))).toEqual(["42", "now"]);
    expect(ids(mergeFound(server, [message("117", true)], 9))).toEqual(["42", "117"]);
  });

  it("has each message once", () => {
    expect(ids(mergeFound([], [message("42", true), message("42", true), message("7", true)], 9))).toEqual(["42", "7"]);
    expect(ids(mergeFound(null, [message("42", true), message("7", false), message("42", false)], 9))).toEqual(["42", "7"]);
  });

  it("has all that this browser finds when the server is out of reach", () => {
    expect(ids(mergeFound(null, [message("42", true), message("41", false)], 9))).toEqual(["42", "41"]);
  });
});

describe("excerptOf", () => {
  const marked = (text: string, highlights: { start: number; end: number }[]): string[] => {
    const { snippet, ranges } = excerptOf(text, highlights);
    return ranges.map(([start, end]) => snippet.slice(start, end));
  };

  it("keeps the place of highlights in a short and in a long text", () => {
    expect(marked("Answer 42", [{ start: 0, end: 6 }, { start: 7, end: 9 }])).toEqual(["Answer", "42"]);
    const long = `${"before\n".repeat(40)}Answer 42 ${"after ".repeat(60)}`;
    expect(marked(long, [{ start: 280, end: 286 }, { start: 287, end: 289 }])).toEqual(["Answer", "42"]);
    expect(excerptOf(long, [{ start: 280, end: 286 }]).snippet).toMatch(/^… before .*Answer 42 after .* …$/);
  });

  it("does not cut a character in two", () => {
    expect(excerptOf("😀".repeat(200), []).snippet).toBe(`${"😀".repeat(80)} …`);
  });
});

describe("searchServer", () => {
  it("returns the messages of the answer, and null if the server does not search", async () => {
    const hit = { threadId: "t", messageId: "m", text: "Answer 42", highlights: [{ start: 7, end: 9 }], match: "exact", by: "words", score: 1, createdAt: "" };
    const answer = vi.fn(() => Promise.resolve(Response.json({ items: [hit, { ...hit, messageId: undefined, path: "a.md" }, { ...hit, messageId: "n", highlights: [], match: "similar", by: "meaning" }, { ...hit, messageId: "f", blobId: "b", name: "a.log" }] })));
    vi.stubGlobal("fetch", answer);
    const { signal } = new AbortController();
    const found = { threadId: "t", messageId: "m", title: null, snippet: "Answer 42", ranges: [[7, 9]], isExact: true, isByMeaning: false };
    const near = { ...found, messageId: "n", ranges: [], isExact: false, isByMeaning: true };
    expect(await searchServer("42 & more", 30, false, signal)).toEqual([found, near, { ...found, messageId: "f", file: "a.log" }]);
    expect(String((answer.mock.calls[0] as unknown[])[0])).toContain("q=42+%26+more&kind=message&meaning=0&limit=30");
    answer.mockImplementation(() => Promise.resolve(Response.json({ code: "not_found" }, { status: 404 })));
    expect(await searchServer("42", 30, true, signal)).toBeNull();
    vi.unstubAllGlobals();
  });
});

describe("foundLocally", () => {
  it("takes what has each word for exact", () => {
    const result = { threadId: "t", messageId: "m", title: "Chat", snippet: "42", ranges: [], at: 0, score: 1 };
    expect(foundLocally([{ ...result, by: "words" }, { ...result, by: "likeness" }]).map(({ isExact }) => isExact)).toEqual([true, false]);
  });
});

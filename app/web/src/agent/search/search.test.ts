import { IDBFactory } from "fake-indexeddb";
import { beforeEach, describe, expect, test } from "vitest";

import { openDatabase, readAll } from "../database.ts";
import { random } from "@khala/client/testing/random.ts";
import { MAX_TEXT_CHARACTERS } from "../embed.ts";
import { createPlainEngine } from "../engines/plain.ts";
import { foldCase, wordsOf } from "../word-segments.ts";
import { MessageArchive, type ArchiveLimits, type SearchResult } from "./message-archive.ts";
import { MessageIndex } from "./message-index.ts";
import { Postings } from "./postings.ts";
import { MAX_SNIPPET_CHARACTERS, snippetOf } from "./snippet.ts";

let database: IDBDatabase;
const archiveOf = (bounds?: ArchiveLimits): MessageArchive => new MessageArchive(new MessageIndex(createPlainEngine()), database, bounds);
const thread = (id: string, title = "", revision = 1): { id: string; title: string; revision: number } => ({ id, title, revision });
const ids = (found: readonly SearchResult[]): string[] => found.map(({ messageId }) => messageId);

beforeEach(async () => {
  database = await openDatabase(new IDBFactory());
});

describe("a search", () => {
  test("finds words in full before their beginnings, and those before what is only alike", async () => {
    const archive = archiveOf();
    await archive.add(thread("t"), [
      { id: "alike", text: "Parse it", at: 4 },
      { id: "beginning", text: "Two parsers for CSV", at: 3 },
      { id: "word", text: "The parser is slow", at: 1 },
      { id: "other", text: "Bananas are yellow", at: 5 },
    ]);
    const found = archive.search("parser", 10);
    expect(found.map(({ messageId, by }) => [messageId, by])).toEqual([["word", "words"], ["beginning", "words"], ["alike", "likeness"]]);
    expect(ids(archive.search("parser", 2))).toEqual(["word", "beginning"]);
  });

  test("needs all words, in any order, and of equals takes the newest first", async () => {
    const archive = archiveOf();
    await archive.add(thread("t"), [
      { id: "both", text: "deploy the server on Monday", at: 1 },
      { id: "later", text: "on monday, we deploy", at: 2 },
      { id: "one", text: "deploy", at: 3 },
    ]);
    expect(ids(archive.search("Monday deploy", 10).filter(({ by }) => by === "words"))).toEqual(["later", "both"]);
  });

  test("doesn't mind case, and forms of letters, and finds words of scripts without spaces", async () => {
    const archive = archiveOf();
    await archive.add(thread("t"), [{ id: "a", text: "Die STRASSE ist naß, sagt Ὀδυσσεύς. 今天天气很好", at: 1 }]);
    for (const query of ["straße", "NASS", "ὀδυσσεύσ", "天气"]) expect(archive.search(query, 1)).toMatchObject([{ messageId: "a", by: "words" }]);
  });

  test.each([
    ["대한민국", "민국"],
    ["\u1112\u1161\u11ab\u1100\u1173\u11af", "글"],
    ["ㄅㄆㄇㄈ", "ㄇ"],
    ["ꀀꀁꀂ", "ꀁ"],
    ["ᥐᥑᥒ", "ᥑ"],
    ["ᦀᦁᦂ", "ᦁ"],
    ["ᨠᨡᨢ", "ᨡ"],
    ["ᬓᬔᬕ", "ᬔ"],
    ["ꦏꦑꦒ", "ꦑ"],
  ])("finds a part of %s, as the server does", async (text, part) => {
    const archive = archiveOf();
    await archive.add(thread("t"), [{ id: "a", text, at: 1 }]);
    expect(archive.search(part, 1)).toMatchObject([{ messageId: "a", by: "words" }]);
  });

  test("finds nothing for nothing", async () => {
    const archive = archiveOf();
    await archive.add(thread("t"), [{ id: "a", text: "word", at: 1 }]);
    for (const query of ["", "  ", "?!", "unrelated"]) expect(archive.search(query, 5)).toEqual([]);
    expect(archive.search("word", 0)).toEqual([]);
  });

  test("shows where the words stand", async () => {
    const archive = archiveOf();
    await archive.add(thread("t", "Notes"), [{ id: "a", text: `${"Lorem ipsum. ".repeat(30)}\nThe Needle’s eye, and needles\tmore. ${"Dolor. ".repeat(90)}`, at: 7 }]);
    const [found] = archive.search("needle", 1);
    expect(found).toMatchObject({ threadId: "t", title: "Notes", at: 7 });
    expect(found?.ranges.map(([start, end]) => found.snippet.slice(start, end))).toEqual(["Needle", "needles"]);
    expect(found?.snippet).toMatch(/^… .*and needles more\. .* …$/);
  });

  test("finds a title, and leads to the thread's newest message, once", async () => {
    const archive = archiveOf();
    await archive.add(thread("t", "Holiday plans"), [{ id: "old", text: "to the sea", at: 1 }, { id: "new", text: "to the hills", at: 2 }]);
    expect(archive.search("holiday", 5)).toMatchObject([{ threadId: "t", messageId: "new", snippet: "Holiday plans", ranges: [[0, 7]] }]);
    await archive.add(thread("t", "Hills"), []);
    expect(archive.search("holiday", 5)).toEqual([]);
    expect(ids(archive.search("hills", 5))).toEqual(["new"]);
  });

  test("agrees with looking at each text, whatever was added, changed and removed", () => {
    const chance = random(5);
    const index = new MessageIndex(createPlainEngine());
    const texts = new Map<string, string>();
    const vocabulary = Array.from({ length: 60 }, () => Array.from({ length: 1 + chance.below(5) }, () => chance.pick(["a", "b", "ß", "Σ", "字"])).join(""));
    for (let step = 0; step < 6_000; step++) {
      const key = `m${chance.below(400)}`;
      if (chance.next() < 0.45) {
        index.remove(key);
        texts.delete(key);
      } else {
        const text = Array.from({ length: 1 + chance.below(6) }, () => chance.pick(vocabulary)).join(" ");
        index.put({ key, threadId: "t", messageId: key, text, at: step });
        texts.set(key, text);
      }
      if (step % 200 !== 0) continue;
      const query = `${chance.pick(vocabulary)} ${chance.pick(vocabulary).slice(0, 2)}`;
      const asked = wordsOf(query).map(({ word }) => word);
      const expected = [...texts].filter(([, text]) => asked.every((start) => wordsOf(text).some(({ word }) => word.startsWith(start))));
      const found = index.search(query, 1_000).filter(({ by }) => by === "words");
      expect(new Set(found.map(({ key: one }) => one))).toEqual(new Set(expected.map(([one]) => one)));
      expect(index.size).toBe(texts.size);
    }
  });
});

describe("the archive", () => {
  test("outlives the worker", async () => {
    const archive = archiveOf();
    await archive.add(thread("t", "A title", 5), [{ id: "a", text: "remember the milk", at: 1 }]);
    const later = archiveOf();
    await later.load();
    expect(later.search("milk", 5)).toEqual(archive.search("milk", 5));
    expect(later.search("remembering milk", 5)).toMatchObject([{ by: "likeness" }]);
    expect(later.revisionOf("t")).toBe(5);
    expect(later.revisionOf("u")).toBeNull();
  });

  test("takes what is new of a thread, and nothing of an older revision", async () => {
    const archive = archiveOf();
    expect(await archive.add(thread("t", "T", 3), [{ id: "a", text: "first", at: 1 }, { id: "b", text: "second", at: 2 }])).toBe(3);
    expect(await archive.add(thread("t", "T", 4), [{ id: "b", text: "second", at: 2 }, { id: "c", text: "third", at: 3 }])).toBe(1);
    expect(await archive.add(thread("t", "T", 2), [{ id: "c", text: "late news", at: 3 }])).toBe(0);
    expect(ids(archive.search("first", 5))).toEqual(["a"]);
    expect(ids(archive.search("third", 5))).toEqual(["c"]);
    expect(archive.search("news", 5)).toEqual([]);
    await archive.add(thread("t", "T", 5), [{ id: "c", text: " ", at: 3 }]);
    expect(archive.search("third", 5)).toEqual([]);
  });

  test("drops what the thread has no more, on whichever branch it was", async () => {
    const archive = archiveOf();
    const at = (time: number, text: string) => ({ id: `m${time}`, text, at: time });
    await archive.add(thread("t", "T", 3), [at(1, "old question"), at(2, "old answer"), at(3, "old version")]);
    await archive.add(thread("u", "T", 1), [at(9, "old friend")]);
    expect(await archive.add(thread("t", "T", 4), [], { ids: ["m1", "m3"], isWhole: true })).toBe(0);
    expect(ids(archive.search("old", 9))).toEqual(["m9", "m3", "m1"]);
    await archive.add(thread("t", "T", 5), [at(5, "new question")], { ids: ["m5", "m6"], isWhole: true });
    expect(ids(archive.search("old", 9))).toEqual(["m9"]);
    expect(ids(archive.search("question", 9))).toEqual(["m5"]);
    expect(JSON.stringify(await readAll(database, "messages"))).not.toMatch(/old (question|answer|version)/);
  });

  test("keeps what is older than all that is known of the thread, and its title", async () => {
    const archive = archiveOf();
    const at = (time: number) => ({ id: `m${time}`, text: `word ${time}`, at: time });
    await archive.add(thread("t", "Title", 3), [at(1), at(2), at(3), at(4)]);
    await archive.add(thread("t", "Title", 4), [at(2)], { ids: ["m2", "m4"], isWhole: false });
    expect(ids(archive.search("word", 9))).toEqual(["m4", "m2", "m1"]);
    await archive.add(thread("t", "Title", 5), [], { ids: ["unknown"], isWhole: false });
    expect(ids(archive.search("word", 9))).toEqual(["m4", "m2", "m1"]);
    expect(ids(archive.search("title", 9))).toEqual(["m4"]);
  });

  test("forgets a thread, also what another tab has kept of it", async () => {
    const archive = archiveOf();
    await archive.add(thread("t", "Secret"), [{ id: "a", text: "secret one", at: 1 }]);
    await archiveOf().add(thread("t", "Secret", 2), [{ id: "b", text: "secret two", at: 2 }]);
    await archive.add(thread("u", "Public"), [{ id: "c", text: "no secret", at: 3 }]);
    await archive.forget("t");
    expect(ids(archive.search("secret", 9))).toEqual(["c"]);
    expect(JSON.stringify(await readAll(database, "messages"))).not.toMatch(/secret (one|two)/i);
    expect(await readAll(database, "threads")).toEqual([thread("u", "Public")]);
  });

  test("clears all", async () => {
    const archive = archiveOf();
    await archive.add(thread("t", "Title"), [{ id: "a", text: "text", at: 1 }]);
    await archive.clear();
    expect(archive.search("text", 5)).toEqual([]);
    expect([...(await readAll(database, "messages")), ...(await readAll(database, "threads"))]).toEqual([]);
    expect(archive.size).toBe(0);
  });

  test("takes up what another tab has indexed", async () => {
    const one = archiveOf();
    await archiveOf().add(thread("t", "Title", 2), [{ id: "a", text: "from the other tab", at: 1 }]);
    await one.reload("t");
    expect(ids(one.search("other tab", 5))).toEqual(["a"]);
    expect(one.revisionOf("t")).toBe(2);
  });

  test("drops the oldest beyond its number of messages, in memory and in the store", async () => {
    const archive = archiveOf({ messages: 100, bytes: 1e9 });
    for (let at = 0; at < 130; at++) await archive.add(thread(`t${at % 7}`), [{ id: `m${at}`, text: `message m${at}`, at }]);
    expect(archive.size).toBeLessThanOrEqual(100);
    expect(archive.size).toBeGreaterThan(90);
    expect(ids(archive.search("m129", 1))).toEqual(["m129"]);
    expect(archive.search("m3", 200).filter(({ messageId }) => messageId === "m3")).toEqual([]);
    expect(await readAll(database, "messages")).toHaveLength(archive.size);
  });

  test("drops the oldest that it finds beyond its bounds", async () => {
    const messages = Array.from({ length: 30 }, (_, at) => ({ id: `m${at}`, text: `message m${at}`, at }));
    await archiveOf().add(thread("t"), messages);
    const smaller = archiveOf({ messages: 20, bytes: 1e9 });
    await smaller.load();
    expect(smaller.size).toBe(19);
    const kept = (await readAll(database, "messages")) as { at: number }[];
    expect(Math.min(...kept.map(({ at }) => at))).toBe(11);
  });

  test("drops the oldest beyond its number of bytes, and cuts what is too long", async () => {
    const archive = archiveOf({ messages: 1e6, bytes: 200_000 });
    for (let at = 0; at < 20; at++) await archive.add(thread("t"), [{ id: `m${at}`, text: `m${at} ${"x".repeat(50_000)} end`, at }]);
    expect(archive.size).toBe(4);
    expect(archive.search("m19", 1)).toMatchObject([{ messageId: "m19", by: "words" }]);
    expect(archive.search("end", 9).filter(({ by }) => by === "words")).toEqual([]);
    for (const entry of (await readAll(database, "messages")) as { text: string }[]) expect(entry.text.length).toBeLessThanOrEqual(MAX_TEXT_CHARACTERS);
  });

  test("works without a store", async () => {
    const archive = new MessageArchive(new MessageIndex(createPlainEngine()), null);
    await archive.load();
    await archive.add(thread("t"), [{ id: "a", text: "text", at: 1 }]);
    expect(ids(archive.search("text", 1))).toEqual(["a"]);
    await archive.forget("t");
    await archive.clear();
    expect(archive.size).toBe(0);
  });
});

test("a snippet is short, whole words where there are spaces, and its ranges are words that match", () => {
  const chance = random(6);
  for (let round = 0; round < 300; round++) {
    const parts = Array.from({ length: chance.below(80) }, () => chance.pick(["lorem", "Straße", "strasse", "ipsum\n", "日本語", "👍🏽", ",", "x".repeat(200), "\t"]));
    const text = parts.join(chance.pick([" ", "", "  "]));
    const { snippet, ranges } = snippetOf(text, ["stras", "日"]);
    expect(snippet.length).toBeLessThanOrEqual(MAX_SNIPPET_CHARACTERS + 4);
    expect(snippet).not.toMatch(/[\n\t]/);
    expect(snippet).not.toMatch(/\p{Cs}/u);
    for (const [start, end] of ranges) expect(foldCase(snippet.slice(start, end))).toMatch(/^(stras|日)/);
  }
});

test("postings know beginnings among many words", () => {
  const postings = new Postings();
  for (let place = 0; place < 9_000; place++) postings.add(place, [`w${place}`, "all"]);
  const hits = (start: string): number => postings.fits(start, 9_000).reduce((sum, fit) => sum + (fit > 0 ? 1 : 0), 0);
  expect([hits("all"), hits("al"), hits("w12"), hits("w8999"), hits("x")]).toEqual([9_000, 9_000, 111, 1, 0]);
  expect(postings.fits("w12", 13)[12]).toBe(1);
});

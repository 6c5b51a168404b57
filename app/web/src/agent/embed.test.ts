import { describe, expect, test } from "vitest";

import { random } from "@khala/client/testing/random.ts";
import { cosine, embed, pack, unpack } from "./embed.ts";
import { DIMENSIONS } from "./engines/engine.ts";
import { foldCase, segmentsOf, wordsOf } from "./word-segments.ts";
import { unit } from "./testing/vectors.ts";

const likeness = (a: string, b: string): number => cosine(embed(a), embed(b));

describe("a lexical vector", () => {
  test("has 384 numbers and length 1", () => {
    const vector = embed("Write a parser for CSV files.");
    expect(vector).toHaveLength(DIMENSIONS);
    expect(Math.hypot(...vector)).toBeCloseTo(1, 5);
  });

  test("is zeros where there are no letters and no digits", () => {
    for (const text of ["", "  \n", "?!… —", "👍🏽"]) expect([...embed(text)].every((value) => value === 0)).toBe(true);
  });

  test("doesn't depend on case, compatibility forms and punctuation", () => {
    expect(likeness("Straße, FILE! ﬁne", "strasse file FINE")).toBeCloseTo(1, 5);
    expect(likeness("ＡＢＣ Ωμέγας", "abc ΩΜΈΓΑΣ")).toBeCloseTo(1, 5);
    expect(likeness("cafe\u0301 noir", "caf\u00e9 noir")).toBeCloseTo(1, 5);
  });

  test("doesn't depend on the order of words", () => {
    expect(likeness("parse the file", "the file, parse")).toBeCloseTo(1, 5);
  });

  test("is nearer to texts with the same words than to parts of words, and nearest to itself", () => {
    const text = "Translate the documentation into German";
    const near = likeness(text, "translate this page into French");
    const far = likeness(text, "a translation of documents");
    const other = likeness(text, "fix failing unit tests quickly");
    expect(likeness(text, text)).toBeCloseTo(1, 5);
    expect(near).toBeGreaterThan(other + 0.1);
    expect(far).toBeGreaterThan(other + 0.1);
  });

  test("stays bounded for texts without end and words without end", () => {
    expect(Math.hypot(...embed("x".repeat(1_000_000)))).toBeCloseTo(1, 5);
    expect(likeness("a b ".repeat(100_000), "a b")).toBeGreaterThan(0.99);
  });

  test("texts without a word in common are hardly alike", () => {
    const chance = random(3);
    const letters = Array.from("abcdefghijklmnopqrstuvwxyz");
    const text = (): string => Array.from({ length: 20 }, () => Array.from({ length: 7 }, () => chance.pick(letters)).join("")).join(" ");
    const all = Array.from({ length: 100 }, () => Math.abs(likeness(text(), text())));
    expect(all.reduce((sum, value) => sum + value, 0) / all.length).toBeLessThan(0.1);
  });
});

test("what is packed comes back pointing the same way", () => {
  const chance = random(4);
  for (let round = 0; round < 50; round++) {
    const vector = round % 2 === 0 ? unit(chance, DIMENSIONS) : embed(`a text of ${round} words or so, with some number ${chance.next()}`);
    expect(cosine(vector, unpack(pack(vector)))).toBeGreaterThan(0.999);
    expect(Math.hypot(...unpack(pack(vector)))).toBeCloseTo(1, 5);
  }
  expect([...unpack(pack(new Float32Array(DIMENSIONS)))].every((value) => value === 0)).toBe(true);
});

describe("words", () => {
  test("say where they stand in the text as it is", () => {
    const text = "Die Straße (№ 5) ist nass_kalt.";
    expect(wordsOf(text).map(({ word, start, end }) => [word, text.slice(start, end)])).toEqual([
      ["die", "Die"],
      ["strasse", "Straße"],
      ["5", "5"],
      ["ist", "ist"],
      ["nass_kalt", "nass_kalt"],
    ]);
  });

  test("are single characters where a script has no spaces, and runs are not", () => {
    expect(wordsOf("用Python解析").map(({ word }) => word)).toEqual(["用", "python", "解", "析"]);
    expect(segmentsOf("用Python解析 文件")).toEqual(["用python解析", "文件"]);
  });

  test("folding what is folded changes nothing", () => {
    for (const text of ["Straße", "ΟΔΥΣΣΕΥΣ", "İstanbul", "ﬁ", "Ǆ", "ŉ", "K", "Å", "ᾳ"]) expect(foldCase(foldCase(text))).toBe(foldCase(text));
  });
});

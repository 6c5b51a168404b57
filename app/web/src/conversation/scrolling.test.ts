import { describe, expect, it } from "vitest";

import { drawnFrom, FIRST, follows, unseenAfter } from "./scrolling.ts";

const at = (top: number, whole = 2000): { top: number; inSight: number; whole: number } => ({ top, inSight: 500, whole });

describe("following the end", () => {
  it("goes on while text grows at the end faster than it is scrolled to", () => {
    expect(follows(true, 1500, at(1500, 3000))).toBe(true);
  });

  it("ends when the person goes up, and only then", () => {
    expect(follows(true, 1500, at(1200))).toBe(false);
    expect(follows(true, 1500, at(1490))).toBe(true);
    expect(follows(false, 1000, at(1100))).toBe(false);
  });

  it("begins again near the end", () => {
    expect(follows(false, 1200, at(1450))).toBe(true);
    expect(follows(false, 1200, at(1430))).toBe(false);
  });

  it("stays where all is in sight, and where things shrink", () => {
    expect(follows(true, 0, at(0, 400))).toBe(true);
    expect(follows(true, 1500, at(700, 1200))).toBe(true);
  });
});

describe("what is drawn of a long chat", () => {
  const ids = Array.from({ length: 2000 }, (_, index) => `m${index}`);

  it("is its end at first, and goes on from the same message whatever comes before or after", () => {
    expect(drawnFrom(ids, null)).toBe(2000 - FIRST);
    expect(drawnFrom(ids, "m1940")).toBe(1940);
    expect(drawnFrom(["earlier", ...ids, "new"], "m1940")).toBe(1941);
    expect(drawnFrom(ids.slice(0, 5), null)).toBe(0);
  });

  it("is the end again where that message is gone", () => {
    expect(drawnFrom(ids, "of another branch")).toBe(2000 - FIRST);
  });

  it("is told how many came unseen", () => {
    expect(unseenAfter(ids, "m1996")).toBe(3);
    expect(unseenAfter(ids, "m1999")).toBe(0);
    expect(unseenAfter(ids, null)).toBe(0);
    expect(unseenAfter(ids, "gone")).toBe(0);
  });
});

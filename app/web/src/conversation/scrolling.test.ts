import { describe, expect, it } from "vitest";

import { firstDrawnIndex, INITIAL_MESSAGES, isFollowingEnd, unseenCount } from "./scrolling.ts";

const at = (top: number, whole = 2000): { top: number; inSight: number; whole: number } => ({ top, inSight: 500, whole });

describe("following the end", () => {
  it("goes on while text grows at the end faster than it is scrolled to", () => {
    expect(isFollowingEnd(true, 1500, at(1500, 3000))).toBe(true);
  });

  it("ends when the person goes up, and only then", () => {
    expect(isFollowingEnd(true, 1500, at(1200))).toBe(false);
    expect(isFollowingEnd(true, 1500, at(1490))).toBe(true);
    expect(isFollowingEnd(false, 1000, at(1100))).toBe(false);
  });

  it("begins again near the end", () => {
    expect(isFollowingEnd(false, 1200, at(1450))).toBe(true);
    expect(isFollowingEnd(false, 1200, at(1430))).toBe(false);
  });

  it("stays where all is in sight, and where things shrink", () => {
    expect(isFollowingEnd(true, 0, at(0, 400))).toBe(true);
    expect(isFollowingEnd(true, 1500, at(700, 1200))).toBe(true);
  });
});

describe("what is drawn of a long chat", () => {
  const ids = Array.from({ length: 2000 }, (_, index) => `m${index}`);

  it("is its end at first, and goes on from the same message whatever comes before or after", () => {
    expect(firstDrawnIndex(ids, null)).toBe(2000 - INITIAL_MESSAGES);
    expect(firstDrawnIndex(ids, "m1940")).toBe(1940);
    expect(firstDrawnIndex(["earlier", ...ids, "new"], "m1940")).toBe(1941);
    expect(firstDrawnIndex(ids.slice(0, 5), null)).toBe(0);
  });

  it("is the end again where that message is gone", () => {
    expect(firstDrawnIndex(ids, "of another branch")).toBe(2000 - INITIAL_MESSAGES);
  });

  it("is told how many came unseen", () => {
    expect(unseenCount(ids, "m1996")).toBe(3);
    expect(unseenCount(ids, "m1999")).toBe(0);
    expect(unseenCount(ids, null)).toBe(0);
    expect(unseenCount(ids, "gone")).toBe(0);
  });
});

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { ScrollFollower } from "./scroll-follower.ts";

const frames: FrameRequestCallback[] = [];
let now = 0;

/** Runs animation frames until there are no more; returns the positions after each. */
function play(area: { scrollTop: number }): number[] {
  const tops: number[] = [];
  for (let turn = 0; frames.length > 0 && turn < 1000; turn++) {
    now += 16;
    frames.splice(0).forEach((act) => act(now));
    tops.push(area.scrollTop);
  }
  return tops;
}

async function follower(area: { scrollTop: number; scrollHeight: number; clientHeight: number }): Promise<ScrollFollower> {
  const { ScrollFollower: Follower } = await import("./scroll-follower.ts");
  return new Follower(area, () => undefined);
}

beforeEach(() => {
  frames.length = 0;
  vi.stubGlobal("document", { hidden: false });
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("requestAnimationFrame", (act: FrameRequestCallback) => frames.push(act));
  vi.stubGlobal("cancelAnimationFrame", () => frames.splice(0));
  vi.spyOn(performance, "now").mockImplementation(() => now);
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

describe("following the end", () => {
  it("goes there in small steps, each shorter than the last, and stops there", async () => {
    const area = { scrollTop: 500, scrollHeight: 1100, clientHeight: 500 };
    (await follower(area)).follow(true);
    const tops = play(area);
    expect(tops.at(-1)).toBe(600);
    expect(tops.length).toBeGreaterThan(10);
    const steps = tops.map((top, at) => top - (tops[at - 1] ?? 500));
    expect(Math.max(...steps)).toBeLessThan(20);
    expect(steps.every((step) => step > 0)).toBe(true);
  });

  it.each([
    ["it is not to be smooth", false, 1100],
    ["the way is long", true, 1600],
  ])("goes there at once if %s", async (_, isSmooth, scrollHeight) => {
    const area = { scrollTop: 500, scrollHeight, clientHeight: 500 };
    (await follower(area)).follow(isSmooth);
    expect([area.scrollTop, frames.length]).toEqual([scrollHeight, 0]);
  });

  it("leaves it to the person who scrolls meanwhile", async () => {
    const area = { scrollTop: 500, scrollHeight: 1100, clientHeight: 500 };
    (await follower(area)).follow(true);
    frames.splice(0).forEach((act) => act((now += 16)));
    area.scrollTop -= 100;
    const top = area.scrollTop;
    expect(new Set(play(area))).toEqual(new Set([top]));
  });

  it("stops", async () => {
    const area = { scrollTop: 500, scrollHeight: 1100, clientHeight: 500 };
    const follows = await follower(area);
    follows.follow(true);
    follows.stop();
    expect([play(area), area.scrollTop]).toEqual([[], 500]);
  });
});

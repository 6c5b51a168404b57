import { describe, expect, it } from "vitest";

import { afterShowing, dueCharacters, paceAfterArrival, START_PACE } from "./reveal-pace.ts";
import type { Pace } from "./reveal-pace.ts";

const FRAME_MS = 1000 / 60;

type Arrival = { at: number; characters: number };

/** Shows arriving text frame by frame; returns what each frame showed, and the most that was behind. */
function play(arrivals: readonly Arrival[], until: number): { frames: number[]; behind: number; chunkBehind: boolean } {
  let pace: Pace = START_PACE;
  let [arrived, shown, behind, next, last] = [0, 0, 0, 0, 0];
  let chunkBehind = true;
  const frames: number[] = [];
  for (let now = 0; now <= until; now += FRAME_MS) {
    let due = 0;
    let elapsed = FRAME_MS;
    for (; next < arrivals.length && (arrivals[next]?.at ?? 0) <= now; next++) {
      const { at, characters } = arrivals[next] ?? { at: 0, characters: 0 };
      due += arrived - shown;
      shown = arrived;
      arrived += characters;
      last = characters;
      pace = paceAfterArrival(pace, characters, at);
      elapsed = now - at;
    }
    const step = dueCharacters(pace, elapsed);
    const count = Math.min(step.count, arrived - shown);
    pace = afterShowing(step.pace, step.count, count === step.count ? count : step.count);
    shown += count;
    behind = Math.max(behind, arrived - shown);
    chunkBehind &&= arrived - shown <= last;
    frames.push(due + count);
  }
  return { frames, behind, chunkBehind };
}

const every = (interval: number, characters: number, jitter: (index: number) => number = () => 0): Arrival[] =>
  Array.from({ length: 30 }, (_, index) => ({ at: (index + 1) * interval + jitter(index), characters }));

describe("the pace of an answer", () => {
  it("is even when text comes evenly", () => {
    const { frames, chunkBehind } = play(every(350, 100), 10_000);
    const steady = frames.slice(60);
    expect(Math.max(...steady)).toBeLessThanOrEqual(7);
    expect(steady.filter((count) => count > 0).length).toBeGreaterThan(0.8 * steady.length);
    expect(chunkBehind).toBe(true);
  });

  it("is at most a chunk behind when text comes unevenly, and shows no chunk at once", () => {
    const { frames, chunkBehind } = play(every(350, 100, (index) => (index % 3) * 40), 10_000);
    expect(chunkBehind).toBe(true);
    expect(Math.max(...frames.slice(60))).toBeLessThan(40);
  });

  it.each([[60, 20], [100, 200], [600, 30], [350, 1200]])("learns the interval of %i ms", (interval, characters) => {
    const { frames, chunkBehind } = play(every(interval, characters), 29 * interval);
    const steady = frames.slice(Math.ceil((15 * interval) / FRAME_MS));
    expect(chunkBehind).toBe(true);
    expect(Math.max(...steady)).toBeLessThan(Math.max(2, (3 * characters * FRAME_MS) / interval));
  });

  it("learns nothing from a long pause", () => {
    const before = paceAfterArrival(paceAfterArrival(START_PACE, 10, 0), 10, 100);
    expect(paceAfterArrival(before, 10, 60_000).interval).toBe(before.interval);
  });

  it("waits for a long character, and pays back one that could not be divided", () => {
    const pace = { ...START_PACE, rate: 0.1 };
    expect(dueCharacters(afterShowing(pace, 5, 3), 10).count).toBe(3);
    expect(dueCharacters(afterShowing(pace, 5, 25), 100).count).toBe(0);
    expect(dueCharacters(afterShowing(pace, 5, 25), 300).count).toBe(10);
  });

  it("never goes back in time", () => {
    expect(dueCharacters({ ...START_PACE, rate: 1 }, -50).count).toBe(0);
  });
});

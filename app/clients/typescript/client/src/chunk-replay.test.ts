import type { UIMessageChunk } from "ai";
import { describe, expect, test } from "vitest";

import { ReplayFilter } from "./chunk-replay.ts";
import { random } from "./testing/random.ts";

const ANSWER: UIMessageChunk[] = [
  { type: "start", messageId: "answer" },
  { type: "start-step" },
  { type: "text-start", id: "text-0" },
  { type: "text-delta", id: "text-0", delta: "One two, one two, one two. " },
  { type: "text-end", id: "text-0" },
  { type: "tool-input-available", toolCallId: "a", toolName: "grep", input: { pattern: "x" } },
  { type: "finish-step" },
  { type: "start-step" },
  { type: "text-start", id: "text-1" },
  { type: "text-delta", id: "text-1", delta: "One two, one two é😀." },
  { type: "text-end", id: "text-1" },
  { type: "finish-step" },
  { type: "finish" },
];

/** The same chunks, with text cut in other places. */
function recut(chunks: readonly UIMessageChunk[], below: (limit: number) => number): UIMessageChunk[] {
  return chunks.flatMap((chunk) => {
    if (chunk.type !== "text-delta") return [chunk];
    const pieces: UIMessageChunk[] = [];
    for (let rest = chunk.delta; rest; ) {
      const delta = rest.slice(0, 1 + below(7));
      pieces.push({ ...chunk, delta });
      rest = rest.slice(delta.length);
    }
    return pieces;
  });
}

/** Neighbouring pieces of a text as one chunk. */
function joined(chunks: readonly UIMessageChunk[]): UIMessageChunk[] {
  const result: UIMessageChunk[] = [];
  for (const chunk of chunks) {
    const last = result.at(-1);
    if (chunk.type === "text-delta" && last?.type === "text-delta" && last.id === chunk.id) result[result.length - 1] = { ...last, delta: last.delta + chunk.delta };
    else result.push(chunk);
  }
  return result;
}

describe("wherever a stream breaks off, and however its replays are cut, the chat has each chunk once", () => {
  test.each(Array.from({ length: 40 }, (_, seed) => seed))("with seed %i", (seed) => {
    const dice = random(seed);
    const filter = new ReplayFilter();
    const got: UIMessageChunk[] = [];
    for (let replay = 0; replay < 4; replay++) {
      if (replay > 0) filter.restart();
      const sent = recut(ANSWER, dice.below);
      const end = replay === 3 ? sent.length : dice.below(sent.length);
      for (const chunk of sent.slice(0, end)) {
        const passed = filter.take(chunk);
        if (passed) got.push(passed);
      }
    }
    expect(joined(got)).toEqual(ANSWER);
    expect(filter.messageId).toBe("answer");
  });
});

test("transient chunks pass each time, and are no part of the answer", () => {
  const filter = new ReplayFilter();
  const progress: UIMessageChunk = { type: "data-progress", data: { message: "half" }, transient: true };
  expect(filter.take(progress)).toBe(progress);
  filter.restart();
  expect(filter.take(progress)).toBe(progress);
});

test("a replay of another answer is an error", () => {
  const filter = new ReplayFilter();
  filter.take({ type: "start", messageId: "one" });
  filter.restart();
  expect(() => filter.take({ type: "start", messageId: "two" })).toThrow("another answer");
});

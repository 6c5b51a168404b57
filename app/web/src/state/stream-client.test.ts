import { afterEach, beforeEach, expect, it, vi } from "vitest";

import type { Batch, ToStream } from "../workers/stream.messages.ts";
import { StreamClient } from "./stream-client.ts";
import type { StreamPort } from "./stream-client.ts";

let frames: (() => void)[] = [];

beforeEach(() => {
  vi.useFakeTimers();
  frames = [];
  vi.stubGlobal("requestAnimationFrame", (act: () => void) => frames.push(act));
  vi.stubGlobal("cancelAnimationFrame", (id: number) => (frames[id - 1] = () => undefined));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function setting() {
  const said: ToStream[] = [];
  const taken: Batch[] = [];
  const port: StreamPort = { postMessage: (message: ToStream) => said.push(message), onmessage: null };
  const stream = new StreamClient((batch) => taken.push(batch));
  stream.start(port);
  return { said, taken, stream, hear: (batch: Batch) => port.onmessage?.({ data: batch } as MessageEvent<Batch>) };
}

const frame = () => frames.splice(0).forEach((act) => act());

it("a batch is shown with the next frame, and only then answered", () => {
  const { said, taken, hear } = setting();
  hear({ generation: 0, isStale: true });
  expect([taken, said]).toEqual([[], []]);
  frame();
  expect([taken, said]).toEqual([[{ generation: 0, isStale: true }], [{ type: "taken" }]]);
});

it("a hidden tab, which has no frames, takes it a little later, and once", () => {
  const { said, taken, hear } = setting();
  hear({ generation: 0, isStale: true });
  vi.advanceTimersByTime(250);
  frame();
  expect([taken.length, said.length]).toEqual([1, 1]);
});

it("of a thread that was left only what concerns all is shown", () => {
  const { taken, stream, hear } = setting();
  hear({ generation: 0, refusal: { code: "forbidden", message: "", attempt: 0 }, isStale: true, connection: { phase: "live" } });
  stream.leave();
  frame();
  expect(taken).toEqual([{ generation: 0, connection: { phase: "live" } }]);
});

it("what was refused to keys that we had before is not shown, as it may be ours by those that we have", () => {
  const { said, taken, stream, hear } = setting();
  stream.follow("t", { anonKey: "key" }, null);
  hear({ generation: 0, refusal: { code: "forbidden", message: "", attempt: 1 }, connection: { phase: "live" } });
  stream.follow("t", {}, "user");
  frame();
  const refused = { generation: 0, refusal: { code: "forbidden", message: "", attempt: 2 } };
  hear(refused);
  frame();
  expect(taken).toEqual([{ generation: 0, connection: { phase: "live" } }, refused]);
  expect(said.flatMap((one) => (one.type === "follow" ? one.attempt : []))).toEqual([1, 2]);
});

it("a change of who we are is between a hold and a release, also if it fails", async () => {
  const { said, stream } = setting();
  await expect(stream.changeIdentity(() => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(said).toEqual([{ type: "hold" }, { type: "release" }]);
});

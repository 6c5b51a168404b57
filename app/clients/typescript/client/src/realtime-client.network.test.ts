import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { textOf } from "./fold.ts";
import { startClient } from "./testing/start-client.ts";
import { random } from "./testing/random.ts";
import type { FakeSocket } from "./testing/fake-sockets.ts";
import { FakeThread, THREAD } from "./testing/fake-thread.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("over a network that loses, doubles, delays and cuts", () => {
  test.each(Array.from({ length: 30 }, (_, seed) => seed))("the text is the server's in the end, and never more than that (%i)", (seed) => {
    const dice = random(seed);
    const thread = new FakeThread();
    thread.ask("Why?");
    const { client, network, events } = startClient();
    let isBad = true;
    const sent = new Map<FakeSocket, number>();
    const deliver = (socket: FakeSocket, frame: ReturnType<FakeThread["snapshot"]> | ReturnType<FakeThread["delta"]>): void => {
      if (frame === null) return;
      sent.set(socket, frame.revision);
      if (isBad && dice.chance(0.1)) return;
      for (let copies = isBad && dice.chance(0.15) ? 2 : 1; copies > 0; copies--) {
        if (isBad && dice.chance(0.15)) setTimeout(() => socket.deliver(frame), dice.below(4000));
        else socket.deliver(frame);
      }
    };
    const serve = (socket: FakeSocket): void => {
      socket.answer = (frame) => {
        if (frame.type === "ping") socket.deliver({ type: "pong" });
        if (frame.type !== "subscribe") return;
        const isOld = frame.after === undefined || dice.chance(0.1);
        deliver(socket, isOld ? thread.snapshot() : thread.delta(frame.after ?? 0));
        sent.set(socket, thread.revision);
      };
      socket.sendHello();
    };
    client.subscribe(THREAD);
    for (let round = 0; round < 170; round++) {
      isBad = round < 120;
      if (isBad) thread.commitSomething(dice);
      for (const socket of network.made) if (socket.readyState === 0 && dice.chance(0.7)) serve(socket);
      const socket = network.last();
      const since = sent.get(socket);
      if (socket.readyState === 1 && since !== undefined) deliver(socket, thread.delta(since));
      if (isBad && dice.chance(0.03)) socket.disconnect();
      vi.advanceTimersByTime(isBad ? dice.below(1500) : 2000);
      const { texts } = thread;
      const wrong = events.states.at(-1)?.messages.filter((message) => !texts[message.id]?.startsWith(textOf(message)));
      expect(wrong ?? []).toEqual([]);
    }
    // Whatever was lost last shows when something follows.
    thread.rename("The end");
    for (let round = 0; round < 20; round++) {
      for (const socket of network.made) if (socket.readyState === 0) serve(socket);
      const since = sent.get(network.last());
      if (since !== undefined) deliver(network.last(), thread.delta(since));
      vi.advanceTimersByTime(3000);
    }
    const last = events.states.at(-1);
    expect(last?.revision).toBe(thread.revision);
    expect(Object.fromEntries((last?.messages ?? []).map(({ id, content }) => [id, content]))).toEqual(thread.contents);
  });
});

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { OwnPresence, otherParticipants } from "./presence.ts";
import type { Participant } from "./page-model.ts";

function one(id: string, page: string, changes: Partial<Participant> = {}): Participant {
  return { id, anonymous: changes.userId === undefined, state: { page, typing: false }, ...changes };
}

describe("the others", () => {
  it("are there once each, however many pages they have open, and we are not", () => {
    const all = [one("1", "ours"), one("2", "elsewhere", { userId: "us" }), one("3", "x", { userId: "ada" }), one("4", "y", { userId: "ada" }), one("5", "guest"), one("6", "guest")];
    expect(otherParticipants(all, "ours", "us").map(({ id }) => id)).toEqual(["ada", "guest"]);
  });

  it("have the name of their account, or the one that a guest gives, in one line", () => {
    const guest = (name: unknown) => one("1", "x", { state: { page: "x", name } });
    const names = [one("2", "y", { userId: "ada", name: "Ada", state: { page: "y", name: "Eve" } }), guest(" Bob\n B. "), guest(7), guest("x".repeat(99))].map((other) => otherParticipants([other], "ours", null)[0]?.name);
    expect(names).toEqual(["Ada", "Bob B.", undefined, "x".repeat(80)]);
  });

  it("are typing if they do so on any of their pages", () => {
    const all = [one("1", "x", { userId: "ada", state: { page: "x", typing: true } }), one("2", "y", { userId: "ada" })];
    expect(otherParticipants(all, "ours", null).map(({ state }) => state.typing)).toEqual([true]);
  });
});

describe("telling the others", () => {
  let said: unknown[] = [];
  let telling: OwnPresence;
  beforeEach(() => {
    vi.useFakeTimers();
    said = [];
    telling = new OwnPresence((state) => said.push(state));
  });
  afterEach(() => void vi.useRealTimers());

  it("that we come and go is at once, and only where it changes something", () => {
    telling.enter("us");
    telling.enter("us");
    telling.setHidden(true);
    telling.setHidden(false);
    telling.enter(null);
    expect(said).toEqual([{ page: "us", typing: false }, null, { page: "us", typing: false }, null]);
  });

  it("a guest's name is told with our presence", () => {
    telling.enter("us", "Bob");
    expect(said).toEqual([{ page: "us", typing: false, name: "Bob" }]);
  });

  it("that we type is at most every two seconds", () => {
    telling.enter("us");
    telling.setActivity({ typing: true });
    telling.setActivity({ typing: false });
    telling.setActivity({ typing: true });
    telling.setActivity(null);
    expect(said).toHaveLength(2);
    vi.advanceTimersByTime(2000);
    expect(said).toEqual([{ page: "us", typing: false }, { page: "us", typing: true }, { page: "us", typing: false }]);
  });

  it("is not by another name than ours here", () => {
    telling.enter("us");
    telling.setActivity({ typing: true, page: "them" });
    expect(said.at(-1)).toEqual({ page: "us", typing: true });
  });

  it("ends with the chat", () => {
    telling.enter("us");
    telling.setActivity({ typing: true });
    telling.setActivity(null);
    telling.leave();
    vi.advanceTimersByTime(10_000);
    expect(said).toHaveLength(2);
  });
});

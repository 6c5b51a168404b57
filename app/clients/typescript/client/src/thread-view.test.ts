import { expect, test } from "vitest";

import type { Participant } from "./frames.ts";
import { peopleOf } from "./thread-view.ts";

const tab = (id: string, changes: Partial<Participant> = {}): Participant => ({ id, anonymous: true, state: {}, ...changes });

test("a person with several tabs is one person; tabs that say nothing count by themselves", () => {
  const ada = { userId: "u1", anonymous: false };
  const tabs = [tab("1", ada), tab("2", { state: { person: "a" } }), tab("3", ada), tab("4", { state: { person: "a", typing: true } }), tab("5"), tab("6", { state: { person: 7 } })];
  expect(peopleOf(tabs).map(({ id }) => id)).toEqual(["1", "2", "5", "6"]);
});

test("nobody takes the place of an account, or of a tab, by the name of their person", () => {
  const tabs = [tab("1", { userId: "u1" }), tab("2", { state: { person: "u1" } }), tab("3"), tab("4", { state: { person: "3" } })];
  expect(peopleOf(tabs)).toHaveLength(4);
});

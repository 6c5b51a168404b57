import { expect, test } from "vitest";

import { formatMinute } from "./format.ts";
import { runName, threadName } from "./item-names.ts";

const createdAt = "2031-03-14T09:25:30Z";
const time = formatMinute(createdAt);

test("a run is called by its agent and its time, never by its id", () => {
  expect(time).toMatch(/^14 Mar 2031, \d\d:\d\d$/);
  expect([runName({ agent: "researcher", createdAt }), runName({ agent: null, createdAt })]).toEqual([`researcher · ${time}`, `Default agent · ${time}`]);
});

test("a closed thread is called by its owner and its time", () => {
  const named = (owner: { id: string; name: string | null; email: string | null } | null) => threadName({ owner, createdAt });
  expect(named(null)).toBe(`Thread of a guest · ${time}`);
  expect(named({ id: "1", name: "Grace Hopper", email: "grace@example.com" })).toBe(`Thread of Grace Hopper · ${time}`);
  expect([named({ id: "1", name: null, email: "grace@example.com" }), named({ id: "1", name: null, email: null })]).toEqual([`Thread of grace@example.com · ${time}`, `Thread of an account · ${time}`]);
});

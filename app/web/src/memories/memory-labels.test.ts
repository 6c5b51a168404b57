import { expect, test } from "vitest";

import { dateLabel, detailLabel, shortText, usedLabel } from "./memory-labels.ts";

test("an answer says how many memories it used", () => {
  expect([usedLabel(1), usedLabel(3)]).toEqual(["Used 1 memory", "Used 3 memories"]);
});

test("a memory says what it is, where it counts, how often it was used and when it expires", () => {
  expect(detailLabel({ kind: "fact", scope: "user", uses: 0 })).toBe("Fact");
  expect(detailLabel({ kind: "preference", scope: "thread", uses: 1 })).toBe("Preference · This chat only · Used once");
  expect(detailLabel({ kind: "instruction", scope: "agent", agent: "poet", uses: 1200, expiresAt: "2026-03-12T12:00:00Z" })).toBe(
    "Instruction · Only with poet · Used 1,200 times · Expires 12 Mar 2026",
  );
  expect(dateLabel("2026-03-12T12:00:00Z")).toBe("12 Mar 2026");
});

test("the name of a button has the first words", () => {
  expect(shortText("I live in Aiur.")).toBe("I live in Aiur.");
  expect(shortText("x".repeat(80))).toBe(`${"x".repeat(59)}…`);
});

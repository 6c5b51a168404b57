import { describe, expect, test } from "vitest";

import { removalConfirmation } from "./confirmations.ts";
import { initials, avatarTone, guestMarks } from "./avatar.ts";
import { connectionLabel } from "./connection-label.ts";
import { matchSegments } from "./match-segments.ts";

describe("avatars", () => {
  test.each([["Ada Lovelace", "AL"], ["ada", "A"], ["Jean-Luc van der Berg", "JB"], ["  ", "?"], ["𝒜lbert", "𝒜"]])("%s is %s", (name, letters) => {
    expect(initials(name)).toBe(letters);
  });

  test("have the same one of six tones whenever the id is the same", () => {
    const tones = Array.from({ length: 100 }, (_, number) => avatarTone(`id-${number}`));
    expect(tones).toEqual(Array.from({ length: 100 }, (_, number) => avatarTone(`id-${number}`)));
    expect(new Set(tones)).toEqual(new Set([0, 1, 2, 3, 4, 5]));
  });
});

describe("guests without a name", () => {
  const looks = (ids: readonly string[]): string[] => [...guestMarks(ids).values()].map(({ shape, tone }) => `${shape} ${tone}`);

  test("that are here at the same time look different, up to six", () => {
    // Their letters have the same sum, so each would have the same look alone.
    expect(new Set(looks(["abc", "acb", "bac", "bca", "cab", "cba"])).size).toBe(6);
    expect(looks(Array.from({ length: 9 }, (_, at) => String(at)))).toHaveLength(9);
  });

  test("look the same in whatever order they are listed", () => {
    expect(guestMarks(["a", "b"])).toEqual(guestMarks(["b", "a"]));
  });
});

describe("the connection", () => {
  test("counts whole seconds until the next try, and never says 0", () => {
    expect(connectionLabel({ phase: "waiting", until: 4200 }, 1000)).toBe("Reconnecting in 4 s");
    expect(connectionLabel({ phase: "waiting", until: 1000 }, 1000)).toBe("Reconnecting in 1 s");
    expect(connectionLabel({ phase: "waiting" }, 1000)).toBe("Reconnecting in 1 s");
  });
});

describe("the pieces of a snippet", () => {
  const RANGES: [number, number][][] = [[], [[0, 3]], [[4, 7], [0, 3]], [[2, 6], [4, 9]], [[5, 5]], [[8, 99]], [[50, 60]]];

  test.each(RANGES.map((ranges) => [ranges]))("joined are the snippet, whatever is marked: %j", (ranges) => {
    expect(matchSegments("the cursor", ranges).map(({ text }) => text).join("")).toBe("the cursor");
  });

  test("are marked where words match", () => {
    expect(matchSegments("the cursor", [[4, 10]])).toEqual([{ text: "the ", isMatch: false }, { text: "cursor", isMatch: true }]);
  });
});

test("only one's own chat is said to be deleted", () => {
  expect(removalConfirmation({ title: "Plans", role: "owner" })).toMatchObject({ title: "Delete “Plans”?", yes: "Delete" });
  expect(removalConfirmation({ title: "", role: "editor" })).toMatchObject({ title: "Remove this chat from your list?", yes: "Remove" });
});

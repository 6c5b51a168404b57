// @vitest-environment jsdom
import { beforeEach, describe, expect, it } from "vitest";

import { draftOf, keepDraft, sendable } from "./drafts.ts";

describe("drafts", () => {
  beforeEach(() => sessionStorage.clear());

  it("are kept by chat until they are empty", () => {
    keepDraft("a", "of a");
    keepDraft("b", "of b");
    expect([draftOf("a"), draftOf("b"), draftOf("c")]).toEqual(["of a", "of b", ""]);
    keepDraft("a", "");
    expect(sessionStorage.length).toBe(1);
  });

  it("are not kept where they are too long, or there is no room; who asks is told", () => {
    expect(keepDraft("a", "x".repeat(200_001))).toBe(false);
    const full = { setItem: () => { throw new DOMException("full", "QuotaExceededError"); } } as unknown as Storage;
    expect(keepDraft("a", "x", full)).toBe(false);
    expect(keepDraft("a", "x")).toBe(true);
  });

  it("can be stored by the server once they are sendable", () => {
    expect(sendable("a\0b \ud83c\udf88 \ud83c x")).toBe("ab \ud83c\udf88 \ufffd x");
  });
});

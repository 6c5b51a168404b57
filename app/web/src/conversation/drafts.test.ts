// @vitest-environment jsdom
import { beforeEach, describe, expect, it } from "vitest";

import { loadDraft, saveDraft, storableText } from "./drafts.ts";

describe("drafts", () => {
  beforeEach(() => sessionStorage.clear());

  it("are kept by chat until they are empty", () => {
    saveDraft("a", "of a");
    saveDraft("b", "of b");
    expect([loadDraft("a"), loadDraft("b"), loadDraft("c")]).toEqual(["of a", "of b", ""]);
    saveDraft("a", "");
    expect(sessionStorage.length).toBe(1);
  });

  it("are not kept where they are too long, or there is no room; who asks is told", () => {
    expect(saveDraft("a", "x".repeat(200_001))).toBe(false);
    const full = { setItem: () => { throw new DOMException("full", "QuotaExceededError"); } } as unknown as Storage;
    expect(saveDraft("a", "x", full)).toBe(false);
    expect(saveDraft("a", "x")).toBe(true);
  });

  it("can be stored by the server once they are sendable", () => {
    expect(storableText("a\0b \ud83c\udf88 \ud83c x")).toBe("ab \ud83c\udf88 \ufffd x");
  });
});

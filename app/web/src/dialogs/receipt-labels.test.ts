import { expect, test } from "vitest";

import { receiptDetail, receiptTitle } from "./receipt-labels.ts";

const createdAt = "2026-03-12T12:00:00Z";

test("a receipt says what a call was for and what it cost", () => {
  const data = { model: "gpt-5-mini", usage: { inputTokens: 1000, outputTokens: 100 } };
  expect(receiptTitle({ purpose: "extraction", data })).toBe("Remembering facts · gpt-5-mini");
  expect(receiptDetail({ data, costUsd: "0.0125", createdAt })).toMatch(/^1,100\u00a0tokens · \$0\.01\d* · .*2026/);
});

test("a receipt without usage, price or model has its time", () => {
  expect(receiptTitle({ purpose: "embedding", data: {} })).toBe("Search and memories");
  expect(receiptTitle({ purpose: "title", data: {} })).toBe("Chat titles");
  expect(receiptDetail({ data: { usage: { inputTokens: 7 } }, createdAt })).toMatch(/^7\u00a0tokens · /);
  expect(receiptDetail({ data: { usage: null }, createdAt })).not.toContain("tokens");
});

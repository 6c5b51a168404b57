import { expect, test } from "vitest";

import { modelDetail } from "./model-detail.ts";

test("the detail names prices and context as far as they are known", () => {
  const model = { model: "a", provider: "a", name: "a" };
  expect(modelDetail(model)).toBe("");
  expect(modelDetail({ ...model, inputUsdPerMillion: "1.25" })).toBe("");
  expect(modelDetail({ ...model, inputUsdPerMillion: "1.25", outputUsdPerMillion: "10", contextTokens: 400_000 })).toBe("$1.25 in, $10.00 out per million tokens · 400K tokens of context");
});

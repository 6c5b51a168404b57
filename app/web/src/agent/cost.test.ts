import { describe, expect, test } from "vitest";

import { costOf, isPrices, priceOf } from "./cost.ts";
import { random } from "@khala/client/testing/random.ts";

/** In 10^-18 USD. */
function scaled(usd: string | null): bigint {
  const [whole = "", fraction = ""] = (usd ?? "none").split(".");
  return BigInt(whole + fraction.padEnd(18, "0"));
}

describe("a cost", () => {
  test.each([
    ["0.15", "0.60", 1_000_000, 1_000_000, "0.75"],
    ["3", "15.00", 1_234, 567, "0.012207"],
    ["0.0375", "0.15", 1, 0, "0.0000000375"],
    ["0.1", "0.2", 3, 0, "0.0000003"],
    ["0", "0", 99, 99, "0"],
    ["1000000", "1", 7, 0, "7"],
  ])("of %s and %s for a million of each, at %i and %i", (inputUsdPerMillion, outputUsdPerMillion, inputTokens, outputTokens, cost) => {
    expect(costOf({ inputUsdPerMillion, outputUsdPerMillion }, { inputTokens, outputTokens })).toBe(cost);
  });

  test("is unknown where a price that matters is", () => {
    expect(costOf({ inputUsdPerMillion: "1" }, { inputTokens: 5, outputTokens: 5 })).toBeNull();
    expect(costOf({ inputUsdPerMillion: "1" }, { inputTokens: 5, outputTokens: 0 })).toBe("0.000005");
    expect(costOf({}, { inputTokens: 0, outputTokens: 0 })).toBe("0");
  });

  test("of parts adds up to that of the whole", () => {
    const chance = random(1);
    for (let round = 0; round < 200; round++) {
      const price = { inputUsdPerMillion: `${chance.below(40)}.${chance.below(10 ** 9)}`, outputUsdPerMillion: `${chance.below(99)}` };
      const parts = Array.from({ length: 9 }, () => ({ inputTokens: chance.below(10 ** 6), outputTokens: chance.below(10 ** 5) }));
      const whole = parts.reduce((sum, part) => ({ inputTokens: sum.inputTokens + part.inputTokens, outputTokens: sum.outputTokens + part.outputTokens }));
      const sum = parts.reduce((total, part) => total + scaled(costOf(price, part)), 0n);
      expect(sum).toBe(scaled(costOf(price, whole)));
    }
  });

  test("of nonsense is an error", () => {
    for (const price of ["", "-1", "1e3", ".5", "1,5", "NaN"]) {
      expect(() => costOf({ inputUsdPerMillion: price }, { inputTokens: 1, outputTokens: 0 })).toThrow(RangeError);
    }
    for (const inputTokens of [-1, 0.5, NaN, Infinity]) expect(() => costOf({}, { inputTokens, outputTokens: 0 })).toThrow(RangeError);
  });
});

test("a price is found by its model", () => {
  const prices = { default: "a:b", items: [{ model: "a:b", provider: "a", name: "b", inputUsdPerMillion: "2" }] };
  expect(priceOf(prices, "a:b")).toMatchObject({ inputUsdPerMillion: "2" });
  expect(priceOf(prices, "a:c")).toBeNull();
});

test("an answer that is no price list is told from one that is", () => {
  expect(isPrices({ default: "a", items: [{ model: "a" }] })).toBe(true);
  for (const wrong of [null, [], "items", {}, { items: 3 }, { items: [null] }, { items: [{ model: 1 }] }]) expect(isPrices(wrong)).toBe(false);
});

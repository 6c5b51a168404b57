import { describe, expect, it } from "vitest";

import type { ContextCall, LeftOut } from "@khala/client";
import { barLabel, barParts, callLabel, failureLabel, leftOutLabel, tokensLabel, totalTokens } from "./context-labels.ts";

const sections: ContextCall["sections"] = [
  { name: "instructions", tokens: 100, items: 1, leftOut: [] },
  { name: "turns", tokens: 300, items: 2, leftOut: [] },
  { name: "tools", tokens: 0, items: 0, leftOut: [] },
];

describe("what a model was told", () => {
  it("names what was left out with its number and reason", () => {
    expect(leftOutLabel({ what: "message:1", tokens: 9, why: "summarised", count: 1200 })).toBe("1,200 messages: replaced by the summary");
    expect(leftOutLabel({ what: "blob:1", tokens: 9, why: "unread" })).toBe("1 file: too many files, or too large");
    expect(leftOutLabel({ what: "memory:1", tokens: 9, why: "share", count: 2 })).toBe("2 memories: over the limit of this section");
    expect(leftOutLabel({ what: "tools", tokens: 9, why: "unrelated", count: 176 })).toBe("176 tools: unrelated to the chat; the model can search for more");
  });

  it("shows reasons and references that it does not know", () => {
    expect(leftOutLabel({ what: "hint:1", tokens: 1, why: "too_new" as LeftOut["why"] })).toBe("1 hint: too_new");
  });

  it("shows each section's share of the limit, and skips empty ones", () => {
    expect(totalTokens({ sections })).toBe(400);
    expect(barParts({ sections, limit: 1000 })).toEqual([{ name: "instructions", percent: 10 }, { name: "turns", percent: 30 }]);
    expect(barLabel({ sections, limit: 1000 })).toBe("Instructions 100, Messages and rounds 300, of 1,000\u00a0tokens");
  });

  it("never draws a bar longer than the whole", () => {
    const parts = barParts({ sections, limit: 200 });
    expect(parts.reduce((sum, { percent }) => sum + percent, 0)).toBe(100);
    expect(barParts({ sections: [], limit: 0 })).toEqual([]);
  });

  it("names calls and failures", () => {
    expect([callLabel({ purpose: "answer" }, 0), callLabel({ purpose: "summary" }, 1)]).toEqual(["Model call 1", "Model call 2 · summary of older messages"]);
    expect([tokensLabel(1), tokensLabel(2410)]).toEqual(["1\u00a0token", "2,410\u00a0tokens"]);
    expect(["stop", "tool_calls", "canceled", "context_exceeded", "timeout"].map((outcome) => failureLabel({ outcome }))).toEqual([null, null, "Stopped", "Too long for the model", "Failed"]);
  });
});

import { expect, test } from "vitest";

import type { Part, Route } from "@khala/client";
import { alternativesLabel, routeLabel, routeOf } from "./route-labels.ts";

const ROUTE: Route = { agent: "reviewer", confidence: 0.823, alternatives: [{ agent: "tester", confidence: 0.1 }, { agent: "writer", confidence: 0.06 }], why: "Matching words: “review”." };

test("the choice of an agent is found among parts, and named with its probability", () => {
  const part = { runId: "r", messageId: "m", seq: 1, kind: "route", data: ROUTE, createdAt: "" } satisfies Part;
  const text = { runId: "r", messageId: "m", seq: 0, kind: "text-delta", data: { text: "a" }, createdAt: "" } satisfies Part;
  expect(routeOf([text, part])).toBe(ROUTE);
  expect(routeOf([text])).toBeNull();
  expect(routeLabel(ROUTE)).toBe("Chose reviewer, 82% match");
  expect(routeLabel({ ...ROUTE, agent: "default" })).toBe("No agent matched this question well enough");
});

test("alternatives are listed with their probability, if there are any", () => {
  expect(alternativesLabel(ROUTE.alternatives)).toBe("Alternatives: tester (10%), writer (6%)");
  expect(alternativesLabel([])).toBe("");
});

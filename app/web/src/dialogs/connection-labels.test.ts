import { expect, test } from "vitest";

import type { AccountConnection } from "@khala/client";

import { parseOutcome } from "../state/connection-outcome.ts";
import { connectionLabel, outcomeLabel } from "./connection-labels.ts";

const NOTES: AccountConnection = { name: "notes", description: "", state: "connected", tools: 2, issuer: null, scopes: [], needsScope: true, connectedAt: null, usedAt: null };

test("a service says what it offers, and what it needs", () => {
  expect(connectionLabel(NOTES)).toBe("Connected · 2 tools · Needs more permissions: connect again");
  expect(connectionLabel({ ...NOTES, tools: 0, needsScope: false })).toBe("Connected");
  expect(connectionLabel({ ...NOTES, state: "disconnected", description: "Notes of people." })).toBe("Notes of people.");
  expect(connectionLabel({ ...NOTES, state: "disconnected" })).toBe("Not connected");
  expect(connectionLabel({ ...NOTES, state: "expired" })).toBe("Access has ended. Connect it again.");
});

test("the outcome of connecting a service is told with its name", () => {
  expect(parseOutcome("?x=1")).toBeNull();
  const outcome = (search: string): string => outcomeLabel(parseOutcome(search) ?? { code: "", service: null });
  expect(outcome("?connection=connected&service=My+notes")).toBe("My notes is connected.");
  expect(outcome("?connection=denied&service=notes")).toBe("Access to notes was not allowed.");
  expect(outcome("?connection=unavailable&service=notes")).toBe("Couldn’t connect notes. Try again.");
  expect(outcome("?connection=expired")).toContain("Couldn’t connect the service");
});

import { expect, test } from "vitest";
import type { Rule } from "@khala/client";
import { allowedPatterns, readAllowed, revokeAllowed } from "./allowed-tools.ts";

const RULES: Rule[] = [
  { pattern: "delete_file", action: "allow" },
  { pattern: "write_*", action: "ask" },
  { pattern: "grep", action: "allow" },
  { pattern: "grep", action: "deny" },
];

test("a tool is allowed if its last rule allows it", () => {
  expect(allowedPatterns(RULES)).toEqual(["delete_file"]);
  expect(allowedPatterns([])).toEqual([]);
});

test("a revoked rule is gone, and the others stay", async () => {
  let stored = RULES;
  const chat = {
    id: "t",
    call: <T>(method: string, path: string, body?: unknown) => {
      expect(path).toBe("/api/threads/t/tool-rules");
      if (method === "PUT") stored = (body as { items: Rule[] }).items;
      return Promise.resolve({ items: stored } as T);
    },
  };
  await revokeAllowed(chat, "delete_file");
  expect(stored).toEqual(RULES.slice(1));
  expect(await readAllowed(chat)).toEqual([]);
});

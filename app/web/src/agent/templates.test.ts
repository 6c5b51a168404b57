import { expect, test } from "vitest";

import { findTemplate, agentTemplates, categories, searchTemplates } from "./templates.ts";

const BUILT_IN = ["read_file", "write_file", "edit_file", "delete_file", "list_directory", "glob", "grep", "todo_*", "fetch_url", "run_code", "read_blob"];

test("there are eight templates that the server takes", () => {
  expect(agentTemplates).toHaveLength(8);
  expect(new Set(agentTemplates.map(({ id }) => id)).size).toBe(8);
  for (const { instructions, tools, prompts, maxSteps } of agentTemplates) {
    expect(instructions.length).toBeGreaterThan(200);
    expect(instructions.length).toBeLessThanOrEqual(8000);
    expect(BUILT_IN).toEqual(expect.arrayContaining([...tools]));
    expect(prompts).toHaveLength(3);
    expect(maxSteps).toBeGreaterThanOrEqual(1);
    expect(maxSteps).toBeLessThanOrEqual(50);
  }
});

test("the reviewer, who changes nothing, has no tool that changes files", () => {
  expect(findTemplate("reviewer")?.tools.some((tool) => /write|edit|delete|run/.test(tool))).toBe(false);
});

test("one is found by words of any of its parts, in any case and order", () => {
  expect(searchTemplates("CODE review", null).map(({ id }) => id)).toEqual(["reviewer"]);
  expect(searchTemplates("fetch_url", null).map(({ id }) => id)).toEqual(["researcher"]);
  expect(searchTemplates("", null)).toHaveLength(8);
  expect(searchTemplates("nothing of the sort", null)).toEqual([]);
});

test("a category keeps the others out", () => {
  expect(categories).toEqual(["Research", "Code", "Data", "Planning", "Writing"]);
  for (const category of categories) expect(searchTemplates("", category).every((agent) => agent.category === category)).toBe(true);
  expect(searchTemplates("reviewer", "Data")).toEqual([]);
});

test("a template that is not there any more is none", () => {
  expect(findTemplate("gone")).toBeNull();
  expect(findTemplate(null)).toBeNull();
});

import { expect, test } from "vitest";

import type { Agent } from "@khala/client";
import { EMPTY_FIELDS, NAME_PATTERN, changesOf, fieldsOf, isCommand, isOwn, missingTools, nameFrom, newAgentOf, searchAgents, splitTools, toolsLabel } from "./agent-fields.ts";

const POET: Agent = {
  name: "poet", title: "Poet", description: "Writes poems.", instructions: "Answer in rhyme.", tools: ["grep", "todo_*"], model: "openai:small",
  fallbacks: ["openai:spare"], examples: ["A poem about Aiur", "A haiku"], budget: { usd: "0.5" }, version: 2, owner: "ada", visibility: "private",
};

test("the fields of an agent give the same agent", () => {
  const { name, title, description, instructions, tools, model, examples, fallbacks, budget } = POET;
  expect(newAgentOf(fieldsOf(POET), POET)).toEqual({ name, title, description, instructions, tools, model, examples, fallbacks, budget });
  expect(changesOf(fieldsOf(POET))).toEqual({ title, description, instructions, tools, model, examples });
});

test("an agent without a model calls the server's, and all tools are one pattern", () => {
  expect(changesOf(fieldsOf({ ...POET, tools: ["*"] }))).toMatchObject({ tools: ["*"] });
  expect(fieldsOf({ ...POET, tools: ["*"] })).toMatchObject({ allTools: true, tools: "" });
  expect(changesOf(EMPTY_FIELDS)).toMatchObject({ model: null, tools: ["*"], examples: [] });
  expect(newAgentOf(EMPTY_FIELDS, null)).not.toHaveProperty("model");
});

test("tools are separated by spaces, commas or lines, and counted once", () => {
  expect(changesOf({ ...EMPTY_FIELDS, allTools: false, tools: " grep, read_*\ngrep " }).tools).toEqual(["grep", "read_*"]);
  expect(changesOf({ ...EMPTY_FIELDS, allTools: false }).tools).toEqual([]);
});

test.each([["Poet", "poet"], ["Café Poët!", "cafe-poet"], ["3 wise 3", "wise-3"], ["詩人", "agent"], ["Auto", "auto-2"], ["x".repeat(90), "x".repeat(59)]])("the name of %s is %s", (title, name) => {
  expect(nameFrom(title, [])).toBe(name);
  expect(name).toMatch(new RegExp(`^${NAME_PATTERN}$`));
});

test("a name is not taken twice", () => {
  expect(nameFrom("Poet", ["poet", "poet-2"])).toBe("poet-3");
});

test("an agent is found by words of any of its texts, in any case and order", () => {
  const other = { ...POET, name: "coder", title: "Coder", description: "Writes code.", tools: ["*"], examples: [] };
  const names = (query: string): string[] => searchAgents([POET, other], query).map(({ name }) => name);
  expect(names("WRITES poem")).toEqual(["poet"]);
  expect(names("todo_")).toEqual(["poet"]);
  expect(names("writes")).toEqual(["poet", "coder"]);
  expect(names("")).toEqual(["poet", "coder"]);
  expect(names("nothing")).toEqual([]);
});

test("own agents come before built-in ones", () => {
  const analyst: Agent = { ...POET, name: "analyst" };
  delete analyst.owner;
  expect(searchAgents([analyst, POET], "").map(({ name }) => name)).toEqual(["poet", "analyst"]);
});

test("tools are named, or all, or none", () => {
  expect([toolsLabel(["*"]), toolsLabel([]), toolsLabel(["grep", "glob"])]).toEqual(["All tools", "No tools", "Search in files · Find files"]);
});

test("the tools that are listed are told from other names and patterns", () => {
  expect(splitTools("grep, todo_*  mail__send grep", ["glob", "grep"])).toEqual({ chosen: ["grep"], others: "todo_* mail__send" });
  expect(splitTools("grep todo_*", [])).toEqual({ chosen: [], others: "grep todo_*" });
});

test("only its owner may change an agent: nobody a built-in one, and a guest none", () => {
  const builtIn: Agent = { ...POET };
  delete builtIn.owner;
  expect([isOwn(POET, "ada"), isOwn(POET, "grace"), isOwn(POET, undefined), isOwn(builtIn, "ada"), isOwn(builtIn, undefined)]).toEqual([true, false, false, false, false]);
});

test("an agent whose name begins with command: is a program of the server", () => {
  expect([isCommand(POET), isCommand({ ...POET, name: "command:claude" })]).toEqual([false, true]);
});

test("an agent misses the tools that it names and that are not there, and none for a pattern", () => {
  expect(missingTools(["grep", "fetch_url", "mcp__*", "*"], ["grep"])).toEqual(["fetch_url"]);
  expect(missingTools([], ["grep"])).toEqual([]);
});

import "../i18n/testing.ts";
import { expect, test } from "vitest";

import { suggestionsFor } from "./suggestions.ts";

const needs = (tools: readonly string[], isDemo = false) => suggestionsFor({ tools, isDemo }).map((suggestion) => suggestion.needs ?? "nothing");

test("there are four different suggestions, whatever the server offers", () => {
  for (const isDemo of [true, false])
    for (const tools of [[], ["fetch_url"], ["run_code"], ["fetch_url", "run_code", "memory_store"]]) {
      const suggestions = suggestionsFor({ tools, isDemo });
      expect(suggestions).toHaveLength(4);
      for (const key of ["icon", "title", "text"] as const) expect(new Set(suggestions.map((suggestion) => suggestion[key])).size).toBe(4);
    }
});

test("the autopilot is suggested only with a tool that it can use", () => {
  expect(needs(["fetch_url", "run_code"])).toEqual(["file", "autopilot", "nothing", "nothing"]);
  expect(needs(["run_code"])).toEqual(["file", "autopilot", "nothing", "nothing"]);
  expect(needs(["memory_store"])).toEqual(["file", "nothing", "nothing", "nothing"]);
});

test("the demo model gets neither files nor tools", () => {
  expect(needs(["fetch_url", "run_code"], true)).toEqual(["nothing", "nothing", "nothing", "nothing"]);
});

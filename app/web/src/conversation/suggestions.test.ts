import "../i18n/testing.ts";
import { expect, test } from "vitest";

import { m } from "../i18n/messages.ts";
import { suggestionsFor } from "./suggestions.ts";

test("there are four different suggestions, whatever the person may do", () => {
  for (const mayAttach of [true, false])
    for (const tools of [null, [], ["fetch_url"], ["fetch_url", "run_code", "memory_store"]]) {
      expect(new Set(suggestionsFor({ tools, mayAttach })).size).toBe(4);
    }
});

test("a tool that is not offered is not suggested", () => {
  expect(suggestionsFor({ tools: ["run_code"], mayAttach: false })).toContain(m.suggest_code());
  expect(suggestionsFor({ tools: ["run_code"], mayAttach: false })).not.toContain(m.suggest_web_page());
  expect(suggestionsFor({ tools: null, mayAttach: false })).not.toContain(m.suggest_file());
  expect(suggestionsFor({ tools: null, mayAttach: true })[0]).toBe(m.suggest_file());
});

import { expect, it } from "vitest";

import { runOptions } from "./run-options.ts";
import { StoredPreferences, clampSteps } from "./preferences.svelte.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";

function kept(before?: string): { kept: BrowserStorage; texts: Map<string, string> } {
  const texts = new Map<string, string>(before === undefined ? [] : [["khala.autopilot", before]]);
  const open = () => ({ getItem: (name: string) => texts.get(name) ?? null, setItem: (name: string, text: string) => void texts.set(name, text), removeItem: (name: string) => void texts.delete(name) });
  return { kept: new BrowserStorage(open), texts };
}

it("what is chosen is there in the next visit", () => {
  const one = kept();
  const chosen = new StoredPreferences(one.kept);
  chosen.autopilot = true;
  chosen.maxSteps = 7;
  chosen.agent = "researcher";
  const next = new StoredPreferences(one.kept);
  expect([next.autopilot, next.maxSteps, next.agent, next.preview]).toEqual([true, 7, "researcher", false]);
});

it("the choices of the page of old are read", () => {
  const chosen = new StoredPreferences(kept('{"on":true,"steps":3}').kept);
  expect(runOptions(chosen)).toEqual({ autopilot: true, maxSteps: 3 });
});

it.each(["", "null", "no json", "[]", '{"on":"yes","steps":"many","agent":5}'])("what makes no sense, as %j, is no choice", (text) => {
  const chosen = new StoredPreferences(kept(text).kept);
  expect(runOptions(chosen)).toEqual({});
  expect([chosen.maxSteps, chosen.agent]).toEqual([20, null]);
});

it.each([[0, 20], [1, 1], [50, 50], [51, 50], [2.4, 2], ["7", 7], [Number.NaN, 20], [undefined, 20]])("%j steps are %j", (steps, sense) => {
  expect(clampSteps(steps)).toBe(sense);
});

it("a budget is told of a run on autopilot, where it is a number", () => {
  const chosen = new StoredPreferences(kept().kept);
  chosen.budgetUsd = " 0,50 ";
  chosen.budgetTokens = "1000";
  expect(runOptions(chosen)).toEqual({});
  chosen.autopilot = true;
  expect(runOptions(chosen).budget).toEqual({ usd: "0.50", tokens: 1000 });
  chosen.budgetUsd = "much";
  chosen.budgetTokens = "-1";
  expect(runOptions(chosen)).not.toHaveProperty("budget");
});

it("the agent of a folder is named where none was chosen", () => {
  const chosen = new StoredPreferences(kept().kept);
  expect(runOptions(chosen, null, "poet")).toEqual({ agent: "poet" });
  chosen.agent = "coder";
  expect(runOptions(chosen, null, "poet")).toEqual({ agent: "coder" });
});

it("the chosen agent is named, with the autopilot and without", () => {
  const chosen = new StoredPreferences(kept().kept);
  chosen.agent = "coder";
  expect(runOptions(chosen)).toEqual({ agent: "coder" });
  chosen.autopilot = true;
  expect(runOptions(chosen)).toEqual({ agent: "coder", autopilot: true, maxSteps: 20 });
});

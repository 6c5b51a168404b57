import { describe, expect, it } from "vitest";

import { budgetFrom, budgetText, exportName, stepsFromLines } from "./plan-settings.ts";
import { errorsByField, fieldsOf, moved, newStepId, stepFrom } from "./step-edits.ts";

it("a step moves to another place, and nowhere outside of the list", () => {
  const ids = ["a", "b", "c"];
  expect([moved(ids, 0, 1), moved(ids, 2, 0), moved(ids, 0, 2)]).toEqual([["b", "a", "c"], ["c", "a", "b"], ["b", "c", "a"]]);
  expect([moved(ids, 0, -1), moved(ids, 2, 3), moved(ids, 1, 1), moved(ids, 7, 1)]).toEqual([null, null, null, null]);
});

describe("the form of a step", () => {
  const step = { id: "a", title: "Build", instructions: "Do it", acceptance: ["one", "two"], dependsOn: ["b"], priority: 3, phase: "First", agent: "coder" };

  it("gives back the step that it was filled with", () => {
    expect(stepFrom(fieldsOf(step), "a", step)).toEqual(step);
    expect(stepFrom(fieldsOf({ id: "b", title: "Bare" }), "b", { id: "b", title: "Bare" })).toEqual({ id: "b", title: "Bare" });
  });

  it("leaves out what is empty", () => {
    const fields = { ...fieldsOf(step), instructions: " ", acceptance: "\n one \n\n", phase: "", agent: "", dependsOn: [] };
    expect(stepFrom(fields, "a", null)).toEqual({ id: "a", title: "Build", acceptance: ["one"] });
  });

  it("gives a new step an id that is free", () => {
    expect([newStepId([]), newStepId(["a", "step-3"])]).toEqual(["step-1", "step-4"]);
  });

  it("shows errors at their fields", () => {
    expect(errorsByField([{ path: "change[0].title", message: "Too long." }, { path: "add[0].acceptance[2]", message: "Empty." }])).toEqual({ title: "Too long.", acceptance: "Empty." });
    expect(errorsByField([{ path: "change[0]", message: "These steps depend on each other: a → b → a." }])).toEqual({ dependsOn: "These steps depend on each other: a → b → a." });
    expect(errorsByField([{ path: "add", message: "A plan has at most 1,000 steps." }])).toEqual({ form: "A plan has at most 1,000 steps." });
  });
});

it("a budget survives its form, and an empty field is no limit", () => {
  expect(budgetFrom(budgetText({ usd: "2.5", tokens: 900, seconds: 90 }))).toEqual({ usd: "2.5", tokens: 900, seconds: 90 });
  expect(budgetFrom(budgetText({}))).toEqual({});
  expect(budgetFrom({ usd: "-1", tokens: "x", minutes: "0" })).toEqual({});
});

it("an export is named after the plan", () => {
  expect([exportName("Build the shop!", "markdown"), exportName("Ünïcode 2", "prd"), exportName("…", "markdown")]).toEqual(["build-the-shop.md", "ünïcode-2.prd.json", "plan.md"]);
});

it("each line is a step, without its list mark", () => {
  expect(stepsFromLines("- One\n\n 2. Two\n* Three 3.5\n")).toEqual([{ id: "step-1", title: "One" }, { id: "step-2", title: "Two" }, { id: "step-3", title: "Three 3.5" }]);
});

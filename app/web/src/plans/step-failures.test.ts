import { expect, test } from "vitest";
import { eventError, stepError } from "./step-failures.ts";

const REFUSED = "The provider answered 401.";
const INVALID_KEY = "This server’s API key for the model provider isn’t valid. Choose another model, or ask the operator of this server.";

test("the error of an event is told by its code and its cause", () => {
  expect(eventError({ error: REFUSED, code: "refused", cause: "invalid_key" })).toBe(INVALID_KEY);
  expect(eventError({ error: "The step took longer than 60 seconds.", code: "step_timeout" })).toBe("The step took too long and was stopped. Try it again.");
  expect([eventError({ error: REFUSED }), eventError({}), eventError({ error: 7 })]).toEqual([REFUSED, "", ""]);
});

test("a step is told by the event of the same error", () => {
  const events = [{ stepId: "a", data: { error: REFUSED, code: "refused", cause: "invalid_key" } }, { stepId: "b", data: { error: "x", code: "timeout" } }];
  expect(stepError({ id: "a", error: REFUSED }, events)).toBe(INVALID_KEY);
  expect([stepError({ id: "a", error: "Another one." }, events), stepError({ id: "c", error: REFUSED }, events), stepError({ id: "a" }, events)]).toEqual(["Another one.", REFUSED, ""]);
});

import { expect, test } from "vitest";
import protocol from "../../../../docs/protocol.md?raw";
import { failureLabel } from "./failure-labels.ts";

const OWN_WORDS = "Anthropic is overloaded.";

test.each([
  ["overloaded", "The model is overloaded. Try again in a moment, or choose another model."],
  ["timeout", "The model took too long to respond. Try again, or choose another model."],
  ["context_exceeded", "This chat is too long for the model. Start a new chat, or choose a model that reads more."],
  ["failed", "The agent failed. Try again, or choose another agent."],
])("an error of the code %s is told in the words of the page", (code, words) => {
  expect(failureLabel({ code, reason: OWN_WORDS })).toBe(words);
});

test.each([["toString"], ["a code of an agent"], ["agent_failed"], [undefined]])("an error of the code %s keeps the words of the server", (code) => {
  expect(failureLabel({ ...(code !== undefined && { code }), reason: OWN_WORDS })).toBe(OWN_WORDS);
});

test("every other code of the protocol has words of the page", () => {
  const codes = /\| `error` \| `\{code, message.*?`internal`/.exec(protocol)?.[0].match(/`[a-z_]+`/g) ?? [];
  const untold = codes.map((code) => code.slice(1, -1)).filter((code) => code !== "error" && failureLabel({ code, reason: OWN_WORDS }) === OWN_WORDS);
  expect(codes.length).toBeGreaterThan(15);
  expect(untold).toEqual(["agent_failed"]);
});

test("the cause of a refusal is told where the page knows it", () => {
  const label = (cause: string): string => failureLabel({ code: "refused", cause, reason: OWN_WORDS });
  expect(label("invalid_key")).toBe("This server’s API key for the model provider isn’t valid. Choose another model, or ask the operator of this server.");
  expect(label("a later one")).toBe("The model’s provider refused this request. Change your message, or choose another model.");
});

import "../i18n/testing.ts";
import { expect, test } from "vitest";

import { automaticModel, effectiveModel, isOffered, preferenceOwner } from "./model-choice.ts";

const LIST = { default: "demo", items: ["demo", "openai:gpt-5", "openai:mini"].map((model) => ({ model, provider: "x", name: model })) };
const NONE = { chosen: null, agent: null, preferred: null, list: LIST };

test("the choice for the chat comes first, then the agent, the preferences and the server", () => {
  expect(effectiveModel(NONE)).toBe("demo");
  expect(effectiveModel({ ...NONE, preferred: "openai:mini" })).toBe("openai:mini");
  expect(effectiveModel({ ...NONE, preferred: "openai:mini", agent: "demo" })).toBe("demo");
  expect(effectiveModel({ ...NONE, agent: "demo", chosen: "openai:gpt-5" })).toBe("openai:gpt-5");
});

test("a model that the server does not offer any more is passed over", () => {
  expect(effectiveModel({ ...NONE, chosen: "gone", preferred: "gone as well" })).toBe("demo");
  expect(isOffered("gone", LIST)).toBe(false);
  expect(isOffered("gone", null)).toBe(true);
});

test("without the list nothing but a choice is known", () => {
  expect(automaticModel({ ...NONE, list: null })).toBeNull();
  expect(effectiveModel({ ...NONE, list: null, chosen: "openai:gpt-5" })).toBe("openai:gpt-5");
});

test("preferences belong to the account, or to the key of a guest", () => {
  expect(preferenceOwner("u", { anonKey: "k" })).toEqual({ id: "u", keys: {} });
  expect(preferenceOwner(null, { anonKey: "k", shareKey: "s" })).toEqual({ id: "k", keys: { anonKey: "k" } });
  expect(preferenceOwner(null, { shareKey: "s" })).toBeNull();
});

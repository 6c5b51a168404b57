import "../i18n/testing.ts";
import { expect, test } from "vitest";

import { modelPurpose, modelTitle, readableName } from "./model-names.ts";

test.each([
  ["claude-opus-5", "Claude Opus 5"],
  ["claude-opus-4-5-20251101", "Claude Opus 4.5"],
  ["claude-3-5-sonnet-latest", "Claude 3.5 Sonnet"],
  ["gpt-6-mini", "GPT-6 mini"],
  ["gpt-4o-2024-08-06", "GPT-4o"],
  ["gpt-4.1-nano", "GPT-4.1 nano"],
  ["gemini-2.5-flash-lite", "Gemini 2.5 Flash Lite"],
  ["llama3.2:3b", "Llama 3.2 3B"],
  ["llama-3.3-70b-instruct", "Llama 3.3 70B Instruct"],
  ["qwen3:8b", "Qwen 3 8B"],
  ["mistral-large-latest", "Mistral Large"],
  ["deepseek-chat", "DeepSeek Chat"],
  ["demo", "Demo"],
])("%s is read as %s", (name, title) => {
  expect(readableName(name)).toBe(title);
});

test.each(["o3-mini", "gpt-oss", "my-own-model", "meta-llama/llama-3.3", "claude/opus", "constructor", "", "Claude-Opus"])("the name %s of another form is unchanged", (name) => {
  expect(readableName(name)).toBe(name);
});

test("the operator's words come before those of the page", () => {
  expect(modelTitle({ name: "gpt-6-mini", title: "House model" })).toBe("House model");
  expect(modelPurpose({ name: "gpt-6-mini", description: "For letters" })).toBe("For letters");
});

test("a model of a known kind has a purpose, and another one has none", () => {
  expect(["claude-opus-5", "gpt-6", "gpt-6-mini", "demo", "my-own-model"].map((name) => modelPurpose({ name }))).toEqual([
    "Best for hard work",
    "A good choice for most tasks",
    "Fast answers to simple questions",
    "Shows how answers look",
    null,
  ]);
});

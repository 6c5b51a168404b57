// What people read of a model: a name and what it is good for, made from the model's own name where the operator has set neither.

import type { Model } from "@khala/client";
import { m } from "../i18n/messages.ts";

/** The families whose names are readable as "Family version kind". Others are shown as they are. */
const FAMILIES = ["claude", "codestral", "command", "deepseek", "gemini", "gemma", "gpt", "grok", "llama", "ministral", "mistral", "mixtral", "phi", "qwen"];
const DEMO = "demo";
/** A snapshot's date, and what stands for the newest one. */
const SNAPSHOT = /-(?:\d{8}|\d{4}-\d\d-\d\d|latest)$/;
const FAST = ["mini", "nano", "haiku", "flash", "lite", "small", "ministral"];
const STRONG = ["opus", "pro", "ultra", "large", "thinking", "reasoner"];

/** "Claude Opus 4.5" for "claude-opus-4-5", "GPT-6 mini" for "gpt-6-mini"; a name of another form is unchanged. */
export function readableName(name: string): string {
  if (name === DEMO) return m.demo_model();
  const found = /^([a-z]+)(?:[-:]?([^/]+))?$/.exec(name.replace(SNAPSHOT, ""));
  const family = found?.[1];
  if (family === undefined || !FAMILIES.includes(family)) return name;
  const words = (found?.[2] ?? "").split(/[-:]/).filter((word) => word !== "");
  return family === "gpt" ? gptName(words, name) : [familyName(family), ...versioned(words).map(capitalized)].join(" ");
}

function familyName(family: string): string {
  return family === "deepseek" ? "DeepSeek" : capitalized(family);
}

/** OpenAI writes "GPT-4o mini": a hyphen before the version, and small letters after it. */
function gptName([version, ...rest]: readonly string[], name: string): string {
  return version !== undefined && /^\d/.test(version) ? [`GPT-${version}`, ...rest].join(" ") : name;
}

/** Small numbers side by side are one version: "4", "5" is "4.5". */
function versioned(words: readonly string[]): string[] {
  const isSmall = (word: string | undefined): boolean => word !== undefined && /^\d{1,2}$/.test(word);
  return words.reduce<string[]>((found, word, at) => (isSmall(word) && isSmall(words[at - 1]) ? [...found.slice(0, -1), `${found.at(-1)}.${word}`] : [...found, word]), []);
}

/** "Opus", and "70B" for a number of parameters. */
function capitalized(word: string): string {
  return /^[\d.]+[a-z]$/.test(word) ? word.toUpperCase() : word.charAt(0).toUpperCase() + word.slice(1);
}

/** The name of a model for people, without its provider. */
export function modelTitle({ title, name }: Pick<Model, "title" | "name">): string {
  return title ?? readableName(name);
}

/** What a model is good for, in one line: the operator's words, else those for its kind; null if neither is known. */
export function modelPurpose({ description, name }: Pick<Model, "description" | "name">): string | null {
  return description ?? purposeOf(name);
}

function purposeOf(name: string): string | null {
  if (name === DEMO) return m.model_purpose_demo();
  const words = name.split(/[-:./]/);
  if (words.some((word) => FAST.includes(word))) return m.model_purpose_fast();
  if (words.some((word) => STRONG.includes(word))) return m.model_purpose_strong();
  return /^(?:gpt-\d|claude-(?:\d+-)*sonnet)/.test(name) ? m.model_purpose_everyday() : null;
}

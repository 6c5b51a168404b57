// Syntax highlighting by CSS classes. The highlighter and each language are loaded on first use.

import type { HLJSApi, LanguageFn } from "highlight.js";

import { sanitizeHtml } from "./sanitize.ts";

/** Longer code stays plain, because highlighting would take too long. */
const MAX_HIGHLIGHTED_CHARACTERS = 50_000;

type Load = () => Promise<{ default: LanguageFn }>;
const LANGUAGES: Readonly<Record<string, Load>> = {
  bash: () => import("highlight.js/lib/languages/bash"),
  c: () => import("highlight.js/lib/languages/c"),
  cpp: () => import("highlight.js/lib/languages/cpp"),
  csharp: () => import("highlight.js/lib/languages/csharp"),
  css: () => import("highlight.js/lib/languages/css"),
  diff: () => import("highlight.js/lib/languages/diff"),
  dockerfile: () => import("highlight.js/lib/languages/dockerfile"),
  go: () => import("highlight.js/lib/languages/go"),
  ini: () => import("highlight.js/lib/languages/ini"),
  java: () => import("highlight.js/lib/languages/java"),
  javascript: () => import("highlight.js/lib/languages/javascript"),
  json: () => import("highlight.js/lib/languages/json"),
  kotlin: () => import("highlight.js/lib/languages/kotlin"),
  lua: () => import("highlight.js/lib/languages/lua"),
  makefile: () => import("highlight.js/lib/languages/makefile"),
  markdown: () => import("highlight.js/lib/languages/markdown"),
  php: () => import("highlight.js/lib/languages/php"),
  python: () => import("highlight.js/lib/languages/python"),
  r: () => import("highlight.js/lib/languages/r"),
  ruby: () => import("highlight.js/lib/languages/ruby"),
  rust: () => import("highlight.js/lib/languages/rust"),
  sql: () => import("highlight.js/lib/languages/sql"),
  swift: () => import("highlight.js/lib/languages/swift"),
  typescript: () => import("highlight.js/lib/languages/typescript"),
  xml: () => import("highlight.js/lib/languages/xml"),
  yaml: () => import("highlight.js/lib/languages/yaml"),
};
const ALIASES: Readonly<Record<string, string>> = {
  ...{ sh: "bash", shell: "bash", zsh: "bash", console: "bash", h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", cs: "csharp", "c#": "csharp" },
  ...{ patch: "diff", docker: "dockerfile", golang: "go", toml: "ini", js: "javascript", jsx: "javascript", mjs: "javascript", kt: "kotlin" },
  ...{ make: "makefile", md: "markdown", py: "python", python3: "python", rb: "ruby", rs: "rust", postgresql: "sql", pgsql: "sql" },
  ...{ ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", svelte: "xml", vue: "xml", yml: "yaml", jsonc: "json" },
};

const isOwn = (name: string): boolean => Object.hasOwn(LANGUAGES, name);

/** The highlighter's name for a language (words after a space are ignored); null for an unknown one. */
export function known(language: string): string | null {
  const [name = ""] = language.toLowerCase().split(" ");
  if (isOwn(name)) return name;
  return Object.hasOwn(ALIASES, name) ? (ALIASES[name] ?? null) : null;
}

async function highlighter(name: string): Promise<HLJSApi> {
  const [{ default: core }, language] = await Promise.all([import("highlight.js/lib/core"), LANGUAGES[name]?.()]);
  if (language && !core.getLanguage(name)) core.registerLanguage(name, language.default);
  return core;
}

/** The highlighted code; null if it stays plain. */
export async function highlight(code: string, language: string): Promise<DocumentFragment | null> {
  const name = known(language);
  if (name === null || code.length > MAX_HIGHLIGHTED_CHARACTERS) return null;
  const core = await highlighter(name);
  return sanitizeHtml(core.highlight(code, { language: name, ignoreIllegals: true }).value);
}

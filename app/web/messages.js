// Compiles the messages of `messages/*.json` into one module per language in `catalogs/`, and preloads what the page starts with.
//
// `node messages.js` compiles once; the Vite plugin does so at each start, and again when a message changes in development.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const ROOT = import.meta.dirname;
const CATALOGS = join(ROOT, "catalogs");
const STAMP = join(CATALOGS, ".compiled");
/** The languages, each with a file in `messages/`. The first one is what the code was written in. */
export const LOCALES = ["en", "de", "es", "fr", "zh", "ja", "ar"];

const RIGHT_TO_LEFT = ["ar"];

/** The path of a language's messages. */
export function messagesPath(locale) {
  return join(ROOT, "messages", `${locale}.json`);
}

/** Compile the messages, unless they have not changed since the last time. */
export async function compileMessages() {
  const sources = [import.meta.filename, ...LOCALES.map(messagesPath)].map((path) => readFileSync(path));
  const digest = sources.reduce((hash, source) => hash.update(source), createHash("sha256")).digest("hex");
  if (existsSync(STAMP) && readFileSync(STAMP, "utf8") === digest) return;
  const project = join(CATALOGS, "project.inlang");
  rmSync(CATALOGS, { recursive: true, force: true });
  mkdirSync(project, { recursive: true });
  const settings = {
    baseLocale: LOCALES[0],
    locales: LOCALES,
    modules: ["../node_modules/@inlang/plugin-message-format/dist/index.js"],
    "plugin.inlang.messageFormat": { pathPattern: "./sources/{locale}.json" },
    telemetry: "off",
  };
  mkdirSync(join(CATALOGS, "sources"));
  for (const locale of LOCALES) writeFileSync(join(CATALOGS, "sources", `${locale}.json`), sourceOf(locale));
  writeFileSync(join(project, "settings.json"), JSON.stringify(settings));
  const outdir = join(CATALOGS, "compiled");
  globalThis.fetch = () => Promise.reject(new Error("Compiling messages needs no network."));
  const { compile } = await import("@inlang/paraglide-js"); // takes a while to load, and is rarely needed
  await compile({ project, outdir, outputStructure: "locale-modules", strategy: ["baseLocale"], emitGitIgnore: false });
  const base = JSON.parse(readFileSync(messagesPath(LOCALES[0]), "utf8"));
  writeFileSync(join(outdir, "messages", `${LOCALES[0]}.d.ts`), Object.entries(base).map(declaration).join(""));
  for (const locale of LOCALES.slice(1)) writeFileSync(join(outdir, "messages", `${locale}.d.ts`), `export * from "./${LOCALES[0]}.js";\n`);
  writeFileSync(STAMP, digest);
}

/** What is put into a text of a right-to-left language keeps its own direction: a name, a path, a time. */
function sourceOf(locale) {
  const source = readFileSync(messagesPath(locale), "utf8");
  return RIGHT_TO_LEFT.includes(locale) ? source.replaceAll(/\{(?!n\})\w+\}/g, "\u2068$&\u2069") : source;
}

/** The names of a message's placeholders. `count` decides about the form of a message with plurals. */
export function placeholders(message) {
  const texts = typeof message === "string" ? [message] : Object.values(message[0].match);
  const names = new Set(texts.flatMap((text) => [...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)));
  if (typeof message !== "string") {
    names.delete("n");
    names.add("count");
  }
  return [...names].toSorted();
}

function declaration([key, message]) {
  const typeOf = (name) => (typeof message !== "string" && name === "count" ? "number" : "string | number");
  const inputs = placeholders(message).map((name) => `${name}: ${typeOf(name)}`);
  return `export declare const ${key}: (${inputs.length > 0 ? `inputs: { ${inputs.join("; ")} }` : ""}) => string;\n`;
}

/** The compiler leaves timers behind that would keep this process alive. */
function compileSeparately() {
  execFileSync(process.execPath, [import.meta.filename], { stdio: "inherit" });
}

/** Short names for the messages: their keys are sentences, which would be a third of a catalogue. */
function shortNames() {
  const keys = Object.keys(JSON.parse(readFileSync(messagesPath(LOCALES[0]), "utf8")));
  return new Map(keys.map((key, index) => [key, `_${index.toString(36)}`]));
}

/** A Vite plugin for builds: shortens the names of messages where they are defined and used. `m` is never the name of anything else. */
function shortened() {
  let names;
  const shorten = (code, pattern) => code.replaceAll(pattern, (found, before, key) => (names.has(key) ? before + names.get(key) : found));
  return {
    name: "khala:short-names",
    apply: "build",
    enforce: "post",
    buildStart: () => void (names = shortNames()),
    transform(code, id) {
      if (id.startsWith(CATALOGS)) return { code: shorten(code, /(export const )(\w+)/g), map: null };
      return /\/(src|gallery)\//.test(id) && code.includes("i18n/messages.ts") ? { code: shorten(code, /(\bm\.)(\w+)/g), map: null } : null;
    },
  };
}

/** A Vite plugin: compiles the messages, and lets the browser load the page while it loads the messages. */
export function messages() {
  const preloaded = { name: "khala:preloads", transformIndexHtml: { order: "post", handler: (_, { bundle, server }) => (server ? [] : preloads(bundle)) } };
  return [...catalogs(), preloaded];
}

/** A Vite plugin: compiles the messages. */
export function catalogs() {
  return [shortened(), compiled()];
}

function compiled() {
  return {
    name: "khala:messages",
    config: compileSeparately,
    handleHotUpdate({ file, server }) {
      if (!LOCALES.some((locale) => messagesPath(locale) === file)) return;
      compileSeparately();
      server.ws.send({ type: "full-reload" });
    },
  };
}

/** Links to the scripts and styles of `start.ts`, which the entry imports after the messages. */
function preloads(bundle) {
  const start = Object.values(bundle).find(({ facadeModuleId }) => facadeModuleId?.endsWith("/src/start.ts"));
  const link = (rel, fileName) => ({ tag: "link", attrs: { rel, crossorigin: true, href: `/web/${fileName}` }, injectTo: "head" });
  const entry = Object.values(bundle).find(({ isEntry }) => isEntry);
  const scripts = [start.fileName, ...start.imports].filter((name) => !entry.imports.includes(name));
  const styles = [...(start.viteMetadata?.importedCss ?? [])];
  return [...scripts.map((name) => link("modulepreload", name)), ...styles.map((name) => link("stylesheet", name))];
}

if (process.argv[1] === import.meta.filename) {
  await compileMessages();
  process.exit(0);
}

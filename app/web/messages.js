// The messages of `messages/*.json`: declares their functions for TypeScript, and makes a catalogue of each language for the page.
//
// `node messages.js` declares them; the Vite plugin does so at each start, and again when a message changes in development.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const ROOT = import.meta.dirname;
/** The languages, each with a file in `messages/`. The first one is what the code was written in. */
export const LOCALES = ["en", "de", "es", "fr", "zh", "ja", "ar"];
/** Folders whose own messages are loaded with their first component: see `i18n/later-messages.ts`. */
const LATER_FOLDERS = ["imports", "schedules"];

/** The path of a language's messages. */
export function messagesPath(locale) {
  return join(ROOT, "messages", `${locale}.json`);
}

function readMessages(path) {
  return JSON.parse(readFileSync(path, "utf8"));
}

function messageNames() {
  return Object.keys(readMessages(messagesPath(LOCALES[0])));
}

/** The messages that only sources in `LATER_FOLDERS` use. */
function laterNames() {
  const sources = join(ROOT, "src");
  const files = readdirSync(sources, { recursive: true }).filter((file) => /\.(ts|svelte)$/.test(file) && !file.endsWith(".test.ts"));
  const isLater = (file) => LATER_FOLDERS.some((folder) => file.startsWith(`${folder}/`));
  const namesIn = (some) => new Set(some.flatMap((file) => [...readFileSync(join(sources, file), "utf8").matchAll(/\bm\.(\w+)/g)].map(([, key]) => key)));
  const first = namesIn(files.filter((file) => !isLater(file)));
  return new Set([...namesIn(files.filter(isLater))].filter((key) => !first.has(key)));
}

/** The names of all messages, those that are loaded later at the end: the order of the indexes in a build. */
function indexedNames() {
  const [later, names] = [laterNames(), messageNames()];
  return { names: [...names.filter((key) => !later.has(key)), ...names.filter((key) => later.has(key))], firstCount: names.length - later.size };
}

/** The messages of a build: a list of those that are needed at once, or the others by their indexes. */
function builtCatalog(messages, isLater) {
  const { names, firstCount } = indexedNames();
  if (!isLater) return names.slice(0, firstCount).map((key) => messages[key]);
  return Object.fromEntries(names.slice(firstCount).map((key, at) => [firstCount + at, messages[key]]));
}

/** Write the types of the functions, one for each message, to `catalogs/messages.d.ts`. */
export function declareMessages() {
  const lines = Object.entries(readMessages(messagesPath(LOCALES[0]))).map(declaration);
  mkdirSync(join(ROOT, "catalogs"), { recursive: true });
  writeFileSync(join(ROOT, "catalogs", "messages.d.ts"), `export interface Messages {\n${lines.join("")}}\n`);
}

/** The names of a message's placeholders. `count` decides about the form of a message with plurals. */
export function placeholders(message) {
  const texts = typeof message === "string" ? [message] : Object.values(message);
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
  return `  ${key}: (${inputs.length > 0 ? `inputs: { ${inputs.join("; ")} }` : ""}) => string;\n`;
}

const CATALOG = /^virtual:messages\/(later-)?(\w+)$/;

/**
 * Provides the module `virtual:messages/{language}`: the messages by their names. Names are sentences, which would be a third of
 * a catalogue, so a build has a list instead, and `m.save` in the code is an index of it. `m` is never the name of anything else.
 * In a build, `virtual:messages/later-{language}` has the messages of `LATER_FOLDERS`.
 */
function catalogLoader() {
  let isBuild;
  return {
    name: "khala:catalogs",
    config: declareMessages,
    configResolved: ({ command }) => void (isBuild = command === "build"),
    resolveId: (id) => (CATALOG.test(id) ? `\0${id}` : null),
    load(id) {
      const [, later, locale] = CATALOG.exec(id.replace(/^\0/, "")) ?? [];
      if (locale === undefined) return null;
      const messages = readMessages(messagesPath(locale));
      const catalog = isBuild ? builtCatalog(messages, later !== undefined) : later === undefined ? messages : {};
      return `export default ${JSON.stringify(catalog)};`;
    },
    handleHotUpdate({ file, server }) {
      const locale = LOCALES.find((each) => messagesPath(each) === file);
      if (locale === undefined) return;
      declareMessages();
      for (const { moduleGraph } of Object.values(server.environments)) {
        const catalog = moduleGraph.getModuleById(`\0virtual:messages/${locale}`);
        if (catalog) moduleGraph.invalidateModule(catalog);
      }
      server.ws.send({ type: "full-reload" });
    },
  };
}

/** After TypeScript and Svelte: the names of messages are replaced by indexes. */
function indexed() {
  let indexes;
  return {
    name: "khala:indexes",
    apply: "build",
    enforce: "post",
    buildStart: () => void (indexes = new Map(indexedNames().names.map((key, index) => [key, index]))),
    transform(code, id) {
      if (!/\/(src|gallery)\//.test(id) || !code.includes("i18n/messages.ts")) return null;
      return { code: code.replaceAll(/\bm\.(\w+)/g, (found, key) => (indexes.has(key) ? `m[${indexes.get(key)}]` : found)), map: null };
    },
  };
}

/** A Vite plugin: provides the messages, and lets the browser load the page while it loads the messages. */
export function messages() {
  const preloaded = { name: "khala:preloads", transformIndexHtml: { order: "post", handler: (_, { bundle, server }) => (server ? [] : preloads(bundle)) } };
  return [...catalogs(), preloaded];
}

/** A Vite plugin: provides the messages. */
export function catalogs() {
  return [catalogLoader(), indexed()];
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

if (process.argv[1] === import.meta.filename) declareMessages();

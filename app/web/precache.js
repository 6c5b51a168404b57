// Builds what stands alone, under names that stay: the service worker, which has to know the files of the very build that it is
// of, and the session's worker, for pages of others.

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";

import { build } from "vite";

import { aliases } from "./client-library.js";

const SERVICE_WORKER = "src/sw.ts";
/** The module that the entry loads after the messages. */
const START = "/src/start.ts";
const CATALOG = /virtual:messages\/(\w+)$/;
/** Files of `public` that the page shows. Their names have no hash. */
const SHOWN = ["icon.svg"];
const SESSION = "src/workers/session.ts";
/** The typeface of all Latin text, which the page shows at once. */
const TEXT_FONT = /assets\/geist-latin-wght-normal-[^/]*\.woff2$/;

/**
 * A Vite plugin: `sw.js`, with the files of the build in place of `__SHELL__`, and `session.js`. The document preloads the typeface
 * of its text, which it would only learn of from the styles of a later part.
 */
export function precache() {
  let config;
  return {
    name: "khala:precache",
    apply: "build",
    enforce: "post",
    configResolved: (resolved) => void (config = resolved),
    transformIndexHtml: {
      order: "post",
      handler(_, { bundle }) {
        const font = Object.keys(bundle).find((name) => TEXT_FONT.test(name));
        if (font === undefined) throw new Error("The typeface of the text is not among the files of the build.");
        return [{ tag: "link", injectTo: "head", attrs: { rel: "preload", href: config.base + font, as: "font", type: "font/woff2", crossorigin: true } }];
      },
    },
    async generateBundle(_, bundle) {
      const shown = await Promise.all(SHOWN.map((name) => readFile(join(config.publicDir, name), "utf8")));
      const shell = shellOf(bundle, config.base, shown);
      if (!shell.first.some(isStream)) this.error("The worker that follows the feed is not among the files of the build.");
      this.emitFile({ type: "asset", fileName: "sw.js", source: await script(config.root, SERVICE_WORKER, { __SHELL__: JSON.stringify(shell) }) });
      this.emitFile({ type: "asset", fileName: "session.js", source: await script(config.root, SESSION) });
    },
  };
}

/**
 * `first` is what is there without a network from the first visit on: the entry, the page with all that it imports, at once or
 * later, the worker that follows the feed, and the typeface of its text. Of the `languages`, the service worker caches the one of the browser. `shown` are pictures with names that stay. What only those later parts load, such as grammars, is kept when it was needed once.
 */
function shellOf(bundle, base, shown) {
  const files = Object.values(bundle);
  const names = files.map(({ fileName }) => fileName).filter((name) => name.startsWith("assets/") && !name.endsWith(".map"));
  const first = new Set();
  const chunks = files.filter((file) => file.type === "chunk");
  const languages = Object.fromEntries(chunks.flatMap(({ facadeModuleId, fileName }) => {
    const [, language] = facadeModuleId?.match(CATALOG) ?? [];
    return language === undefined ? [] : [[language, base + fileName]];
  }));
  for (const entry of chunks.filter(({ isEntry }) => isEntry)) gather(entry, bundle, first);
  for (const entry of chunks.filter(({ facadeModuleId }) => facadeModuleId?.endsWith(START))) {
    const page = new Set(first);
    gather(entry, bundle, page);
    // The entry imports the languages later.
    const own = [...page].filter((name) => !first.has(name));
    for (const later of own.flatMap((name) => bundle[name].dynamicImports ?? [])) gather(bundle[later], bundle, first);
    for (const name of own) first.add(name);
  }
  for (const name of names.filter((name) => isStream(name) || TEXT_FONT.test(name))) first.add(name);
  const page = files.find(({ fileName }) => fileName === "index.html");
  const version = createHash("sha256").update(JSON.stringify([names.toSorted(), String(page?.source), shown])).digest("hex").slice(0, 12);
  const paths = (some) => [...some].toSorted().map((name) => base + name);
  return { version, first: paths(first), languages, every: paths(names), shown: paths(SHOWN) };
}

function isStream(name) {
  return /assets\/stream-[^/]*\.js$/.test(name);
}

function gather(chunk, bundle, found) {
  if (!chunk || found.has(chunk.fileName)) return;
  found.add(chunk.fileName);
  for (const style of chunk.viteMetadata?.importedCss ?? []) found.add(style);
  for (const name of chunk.imports) gather(bundle[name], bundle, found);
}

/** All in one classic script: not every browser takes a module as a service worker. */
async function script(root, entry, define = {}) {
  const { output } = await build({
    root,
    configFile: false,
    publicDir: false,
    logLevel: "warn",
    define,
    resolve: { alias: aliases },
    build: { write: false, target: "es2023", rolldownOptions: { input: entry, output: { format: "iife" } } },
  });
  return output[0].code;
}

// Builds the gallery of components into `.cache/gallery` of the repository. It is no part of the page that is served.

import { join } from "node:path";

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

import { assemblyscript } from "./assemblyscript.js";
import { aliases, CLIENT_LIBRARY } from "./client-library.js";
import { catalogs } from "./messages.js";

/** Frames start no such worker, and its tokenizers take longer to build than everything else. */
const withoutAgent = { name: "khala:without-agent", load: (id) => (id.endsWith("/workers/agent.ts") ? "" : null) };

export default defineConfig({
  root: "gallery",
  base: "/",
  publicDir: "../public",
  plugins: [catalogs(), assemblyscript(), svelte({ configFile: "../svelte.config.js" })],
  resolve: { alias: aliases },
  server: { port: 5174, strictPort: true, fs: { allow: [import.meta.dirname, CLIENT_LIBRARY] } },
  build: {
    target: "es2023",
    outDir: join(import.meta.dirname, "../../.cache/gallery"),
    emptyOutDir: true,
    modulePreload: false,
    chunkSizeWarningLimit: 10_000,
    // One file: what is loaded lazily on the page is at hand here, so a state is complete when the browser is idle.
    rolldownOptions: { output: { codeSplitting: false } },
  },
  worker: { format: "es", plugins: () => [withoutAgent] },
});

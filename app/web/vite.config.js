import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

import { assemblyscript } from "./assemblyscript.js";
import { aliases, CLIENT_LIBRARY } from "./client-library.js";
import { firstScripts } from "./first-script.js";
import { messages } from "./messages.js";
import { precache } from "./precache.js";

const SERVER = process.env.KHALA_URL ?? "http://127.0.0.1:8000";
const ITS_OWN = ["/api", "/v1", "/autopilot", "/preview", "/groups", "/mcp"];

/** In development, serves the console at its addresses. It is built by `vite.console.config.js`. */
const consoleDocument = {
  name: "khala:console",
  apply: "serve",
  configureServer: ({ middlewares }) =>
    void middlewares.use((request, _, next) => {
      if (/^\/console(?:[/?]|$)/.test(request.url)) request.url = "/console.html";
      next();
    }),
};

/** Built, the page lives at `/` and `/t/{id}` and its files under `/web/`; in development a running server answers for the rest. */
export default defineConfig(({ command }) => ({
  base: command === "build" ? "/web/" : "/",
  plugins: [messages(), assemblyscript(), svelte(), precache(), consoleDocument],
  build: {
    target: "es2023",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // what is inlined would break the policy
    license: { fileName: "licenses.md" },
    rolldownOptions: { input: { index: "index.html" }, output: { codeSplitting: { groups: firstScripts() } } },
  },
  worker: { format: "es" },
  // It finds its WebAssembly by its own address, which a bundle of dependencies would change.
  optimizeDeps: { exclude: ["@ruvector/wasm"] },
  resolve: {
    alias: aliases,
    ...(process.env.VITEST && { conditions: ["browser"] }), // what components do in a browser
  },
  server: {
    port: 5173,
    strictPort: true,
    fs: { allow: [".", CLIENT_LIBRARY] },
    proxy: Object.fromEntries(ITS_OWN.map((path) => [path, { target: SERVER, ws: path === "/api", changeOrigin: true, headers: { origin: SERVER } }])),
  },
  test: { include: ["src/**/*.test.ts"], environment: "node", isolate: false, setupFiles: ["src/i18n/testing.ts"] },
}));

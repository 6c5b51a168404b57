// Builds the operators' console into `dist/console`. It is a build of its own: the chat page gets none of its code or chunks, and
// its files are outside `/web/assets/`, so the service worker of the chat page leaves them alone.

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

import { aliases } from "./client-library.js";

export default defineConfig({
  base: "/web/console/",
  publicDir: false,
  plugins: [svelte()],
  resolve: { alias: aliases },
  build: {
    target: "es2023",
    outDir: "dist/console",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // what is inlined would break the policy
    license: { fileName: "licenses.md" },
    rolldownOptions: { input: "console.html" },
  },
});

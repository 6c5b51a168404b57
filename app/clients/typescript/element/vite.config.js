import { join } from "node:path";

import { defineConfig } from "vite";

/** One file with everything in it, so that a page loads it with one script tag. */
export default defineConfig({
  resolve: { alias: { "@khala/client": join(import.meta.dirname, "../client/src/index.ts") } },
  build: { lib: { entry: "src/index.ts", formats: ["es"], fileName: "khala-chat" }, target: "es2022", minify: true },
});

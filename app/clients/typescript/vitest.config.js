import { join } from "node:path";

import { defineConfig } from "vitest/config";

/** The packages' sources, so that the tests need no build. */
const alias = [
  { find: /^@khala\/client$/, replacement: join(import.meta.dirname, "client/src/index.ts") },
  { find: /^@khala\/react$/, replacement: join(import.meta.dirname, "react/src/index.ts") },
];

export default defineConfig({
  resolve: { alias },
  server: { fs: { allow: ["../../.."] } },
  test: { include: ["client/src/**/*.test.ts", "react/src/**/*.test.tsx", "element/src/**/*.test.ts"], environment: "node" },
});

// Where the page finds `@khala/client`: its sources are in this repository, and are bundled with those of the page.

import { join } from "node:path";

/** The folder of the sources. */
export const CLIENT_LIBRARY = join(import.meta.dirname, "../clients/typescript/client");

/** Aliases for Vite. `tsconfig.json` has the same as `paths`. */
export const aliases = [
  { find: /^@khala\/client$/, replacement: join(CLIENT_LIBRARY, "src/index.ts") },
  { find: /^@khala\/client\/testing\//, replacement: join(CLIENT_LIBRARY, "src/testing/") },
];

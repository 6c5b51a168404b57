import js from "@eslint/js";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";

import svelteConfig from "./svelte.config.js";

const COMPONENTS = ["conversation", "tasks", "autopilot", "memories", "panel", "plans", "schedules", "imports", "chats", "dialogs"];
/** Each room, and those that it must know nothing of. */
const rooms = [
  ["browser", ["i18n", "console", "agent", "session", "state", "workers", ...COMPONENTS]],
  ["i18n", ["agent", "session", "state", ...COMPONENTS]],
  ["console", ["agent", "session", "state", "workers", ...COMPONENTS]],
  ["agent", ["state", ...COMPONENTS]],
  ["session", ["agent", "state", ...COMPONENTS]],
  ["state", COMPONENTS],
  // Entries of workers are put together from the rooms whose work they do.
  ["workers", ["state", "conversation", "chats", "dialogs"]],
  ...COMPONENTS.map((room) => [room, []]),
];
const messagesAlone = { group: ["**/workers/*", "!**/workers/*.messages.ts"], message: "Of a worker only the types of its messages are imported." };

function restricted([room, above]) {
  const up = above.map((name) => ({ group: [`**/${name}/*`], message: "Imports go down only: see docs/web.md." }));
  return { patterns: room === "workers" ? up : [...up, messagesAlone] };
}

export default ts.config(
  { ignores: ["dist", "node_modules", "catalogs", "src/agent/assembly"] },
  js.configs.recommended,
  ts.configs.strictTypeChecked,
  ts.configs.stylisticTypeChecked,
  svelte.configs.recommended,
  {
    languageOptions: {
      globals: { ...globals.browser, ...globals.worker },
      parserOptions: { project: ["./tsconfig.json", "./tsconfig.workers.json"], tsconfigRootDir: import.meta.dirname, extraFileExtensions: [".svelte"] },
    },
    rules: {
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-confusing-void-expression": "off",
      "@typescript-eslint/consistent-type-definitions": "off",
      "@typescript-eslint/no-non-null-assertion": "error",
      "@typescript-eslint/only-throw-error": "error",
      "max-lines": ["error", { max: 300, skipBlankLines: true }],
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
  { files: ["**/*.svelte", "**/*.svelte.ts"], languageOptions: { parserOptions: { parser: ts.parser, svelteConfig } } },
  ...rooms.map((room) => ({
    files: [`src/${room[0]}/**`],
    ignores: ["**/*.test.ts"],
    rules: { "no-restricted-imports": ["error", restricted(room)] },
  })),
  { files: ["**/*.test.ts"], rules: { "max-lines": ["error", { max: 400, skipBlankLines: true }] } },
  { ...ts.configs.disableTypeChecked, files: ["*.js"] },
  { files: ["*.js"], languageOptions: { globals: globals.node } },
);

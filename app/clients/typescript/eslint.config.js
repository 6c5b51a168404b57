import js from "@eslint/js";
import hooks from "eslint-plugin-react-hooks";
import globals from "globals";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["**/dist", "**/node_modules", "client/src/frames.ts"] },
  js.configs.recommended,
  ts.configs.strictTypeChecked,
  ts.configs.stylisticTypeChecked,
  {
    languageOptions: {
      globals: { ...globals.browser, ...globals.worker },
      parserOptions: { project: ["./client/tsconfig.json", "./react/tsconfig.json", "./element/tsconfig.json", "./tsconfig.examples.json"], tsconfigRootDir: import.meta.dirname },
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
  { files: ["react/**/*.{ts,tsx}", "examples/**/*.{ts,tsx}"], ...hooks.configs.flat["recommended-latest"] },
  { files: ["**/*.test.{ts,tsx}"], rules: { "max-lines": ["error", { max: 400, skipBlankLines: true }], "@typescript-eslint/require-await": "off" } },
  { ...ts.configs.disableTypeChecked, files: ["**/*.js"] },
  { files: ["**/*.js"], languageOptions: { globals: globals.node } },
);

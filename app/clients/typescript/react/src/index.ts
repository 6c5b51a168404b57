// @khala/react: hooks for Khala. See README.md.

export * from "./hooks.ts";
export * from "./provider.ts";

// The variants in which each state is shown.

/** A language, a theme, and a width of frames in pixels; without it, that of the group. */
type Facts = { readonly languages: readonly string[]; readonly isDark: boolean; readonly width?: number };

/** Together they show each state in both themes, in both directions, and as wide as a small phone. */
const FACTS = {
  light: { languages: ["en-GB"], isDark: false },
  narrow: { languages: ["en-GB"], isDark: true, width: 320 },
  rtl: { languages: ["ar"], isDark: false },
} as const satisfies Record<string, Facts>;

export type Variant = keyof typeof FACTS;
export const VARIANTS = Object.keys(FACTS) as Variant[];

export function isVariant(name: string): name is Variant {
  return Object.hasOwn(FACTS, name);
}

export function factsOf(variant: Variant): Facts {
  return FACTS[variant];
}

// Typesets formulas as MathML, which needs no style sheet or fonts. KaTeX is loaded with the first formula.

import type { KatexOptions } from "katex";

import { sanitizeFormula } from "./sanitize.ts";
import { texOf } from "./math.ts";

/** No macro may load resources or expand without bound. */
const OPTIONS: KatexOptions = { output: "mathml", trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 200 };

/** The MathML of a source such as `$x^2$`; null if it can't be parsed, and stays text. */
export async function typeset(source: string): Promise<DocumentFragment | null> {
  const { default: katex } = await import("katex");
  const { tex, display } = texOf(source);
  try {
    return sanitizeFormula(katex.renderToString(tex, { ...OPTIONS, displayMode: display }));
  } catch (error) {
    if (error instanceof katex.ParseError || error instanceof RangeError) return null; // RangeError: nested too deeply
    throw error;
  }
}

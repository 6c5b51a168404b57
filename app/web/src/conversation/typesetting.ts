// Formulas as MathML, which needs neither styles nor fonts of ours. KaTeX is loaded with the first one.

import type { KatexOptions } from "katex";

import { cleanFormula } from "./clean.ts";
import { texOf } from "./math.ts";

/** No macro may reach out or run on for long. */
const OPTIONS: KatexOptions = { output: "mathml", trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 200 };

/** The formula of a source such as `$x^2$`; null if it is none that can be read, and stays text. */
export async function typeset(source: string): Promise<DocumentFragment | null> {
  const { default: katex } = await import("katex");
  const { tex, display } = texOf(source);
  try {
    return cleanFormula(katex.renderToString(tex, { ...OPTIONS, displayMode: display }));
  } catch (error) {
    if (error instanceof katex.ParseError || error instanceof RangeError) return null; // RangeError: nested too deeply
    throw error;
  }
}

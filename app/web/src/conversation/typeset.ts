// Typesets formulas as MathML. KaTeX, and a font with the parts of large brackets and roots, are loaded with the first formula.

import fontUrl from "@fontsource/noto-sans-math/files/noto-sans-math-latin-400-normal.woff2?url";
import type { KatexOptions } from "katex";

import { sanitizeFormula } from "./sanitize.ts";
import { texOf } from "./math.ts";

/** No macro may load resources or expand without bound. */
const OPTIONS: KatexOptions = { output: "mathml", trust: false, strict: "ignore", throwOnError: true, maxSize: 20, maxExpand: 200 };

let isFontAdded = false;

/** The font is shown when it has arrived; without it, formulas have the system's font. */
function addFont(): void {
  if (isFontAdded || typeof FontFace === "undefined") return;
  isFontAdded = true;
  const font = new FontFace("Noto Sans Math", `url("${fontUrl}") format("woff2")`, { display: "swap" });
  document.fonts.add(font);
  font.load().catch((error: unknown) => console.info("Formulas are shown in the system's font.", error));
}

/** The MathML of a source such as `$x^2$`; null if it can't be parsed, and stays text. */
export async function typeset(source: string): Promise<DocumentFragment | null> {
  const [{ default: katex }, { spaceOperators }] = await Promise.all([import("katex"), import("./operator-spaces.ts")]);
  addFont();
  const { tex, display } = texOf(source);
  try {
    const formula = sanitizeFormula(katex.renderToString(tex, { ...OPTIONS, displayMode: display }));
    spaceOperators(formula);
    return formula;
  } catch (error) {
    if (error instanceof katex.ParseError || error instanceof RangeError) return null; // RangeError: nested too deeply
    throw error;
  }
}

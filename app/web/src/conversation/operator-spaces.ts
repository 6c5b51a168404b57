// The thin spaces of TeX around operators with names, as in "n log n". KaTeX leaves them to MathML, and browsers do not add them.

const APPLICATION = "\u2061";
const THIN = "0.1667em";
const CLOSING = new Set([")", "]", "}", "⟩", "⌉", "⌋"]);

/** Add a thin space before each operator that follows an operand, and after each that an operand follows. */
export function spaceOperators(formula: ParentNode): void {
  for (const mark of formula.querySelectorAll("mo")) {
    if (mark.textContent !== APPLICATION) continue;
    const scripts = isBaseOfScripts(mark.parentElement) ? mark.parentElement?.parentElement : null;
    const first = scripts ?? mark.previousElementSibling;
    const last = scripts ?? mark;
    const before = first?.previousElementSibling;
    if (first && before && (isOperand(before) || CLOSING.has(before.textContent))) first.before(thinSpace(mark));
    const after = last.nextElementSibling;
    if (after && isOperand(after)) last.after(thinSpace(mark));
  }
}

/** Whether the row is an operator that has limits or an exponent. */
function isBaseOfScripts(row: Element | null): boolean {
  return row?.localName === "mrow" && row.previousElementSibling === null && /^m(?:sub|sup|subsup|under|over|underover)$/.test(row.parentElement?.localName ?? "");
}

function isOperand(element: Element): boolean {
  return element.localName !== "mo" && element.localName !== "mspace";
}

function thinSpace(like: Element): Element {
  const space = document.createElementNS(like.namespaceURI, "mspace");
  space.setAttribute("width", THIN);
  return space;
}

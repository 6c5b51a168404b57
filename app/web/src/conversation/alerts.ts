// GitHub's alerts: quotations that begin with a mark such as `[!NOTE]`.

import type { Token, Tokens } from "marked";

/** The title of each kind. */
export const ALERT_TITLES: Readonly<Record<string, string>> = { note: "Note", tip: "Tip", important: "Important", warning: "Warning", caution: "Caution" };

const MARK = /^\[!(note|tip|important|warning|caution)\][ \t]*(?:\n|$)/i;

/** The kind of the alert, and the text of its first paragraph without the mark; null for an ordinary quotation. */
export function alertOf(tokens: readonly Token[]): { kind: string; first: string } | null {
  const [first] = tokens;
  if (first?.type !== "paragraph") return null;
  const { text } = first as Tokens.Paragraph;
  const mark = MARK.exec(text);
  return mark ? { kind: (mark[1] ?? "").toLowerCase(), first: text.slice(mark[0].length) } : null;
}

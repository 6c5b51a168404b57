// GitHub's alerts: quotations that begin with a mark such as `[!NOTE]`.

import type { Token, Tokens } from "marked";

import { m } from "../i18n/messages.ts";

/** The title of each kind. */
const TITLES: Readonly<Record<string, () => string>> = { note: m.alert_note, tip: m.alert_tip, important: m.alert_important, warning: m.alert_warning, caution: m.alert_caution };

const MARK = /^\[!(note|tip|important|warning|caution)\][ \t]*(?:\n|$)/i;

/** The title of this kind, in the language of the page. */
export function alertTitle(kind: string): string {
  return TITLES[kind]?.() ?? "";
}

/** The kind of the alert, and the text of its first paragraph without the mark; null for an ordinary quotation. */
export function alertOf(tokens: readonly Token[]): { kind: string; first: string } | null {
  const [first] = tokens;
  if (first?.type !== "paragraph") return null;
  const { text } = first as Tokens.Paragraph;
  const mark = MARK.exec(text);
  return mark ? { kind: (mark[1] ?? "").toLowerCase(), first: text.slice(mark[0].length) } : null;
}

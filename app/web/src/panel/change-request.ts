// What a person asks to be changed in a file: a quote of it for the message, with the name of the file and the lines.

import { endOf, shortened } from "../conversation/quoted-passage.ts";
import { formatNumber } from "../state/format.ts";
import { m } from "../i18n/messages.ts";

type Selected = Pick<Selection, "rangeCount" | "getRangeAt" | "toString">;
export type LineRange = { first: number; last: number };

/** The selected text, if all of it is in `area`; otherwise empty. The indent of its first line stays. */
export function passageIn(selection: Selected, area: Element): string {
  if (selection.rangeCount === 0) return "";
  const range = selection.getRangeAt(0);
  if (!area.contains(range.startContainer) || !area.contains(endOf(range))) return "";
  const text = selection.toString();
  return text.trim() === "" ? "" : shortened(text.replace(/^(?:[^\S\n]*\n)+/, "").trimEnd());
}

/** The lines of code that a range selects, without empty ones at its ends; null where nothing numbers lines. */
export function linesOf(range: Range): LineRange | null {
  const element = range.startContainer instanceof Element ? range.startContainer : range.startContainer.parentElement;
  const code = element?.closest("code[data-numbered]");
  if (!code?.contains(endOf(range))) return null;
  const before = range.cloneRange();
  before.selectNodeContents(code);
  before.setEnd(range.startContainer, range.startOffset);
  const selected = range.toString();
  const skipped = /^(?:[^\S\n]*\n)*/.exec(selected)?.[0].length ?? 0;
  const first = 1 + breaksIn(before.toString()) + breaksIn(selected.slice(0, skipped));
  return { first, last: first + breaksIn(selected.slice(skipped).trimEnd()) };
}

/** The text to quote for a change of a passage of this file; without a passage, of the whole file. */
export function changeRequest(name: string, passage = "", lines: LineRange | null = null): string {
  return passage === "" ? name : `${heading(name, lines)}\n${passage}`;
}

function heading(name: string, lines: LineRange | null): string {
  if (lines === null) return `${name}:`;
  const [first, last] = [formatNumber(lines.first), formatNumber(lines.last)];
  return lines.first === lines.last ? m.quoted_file_line({ name, line: first }) : m.quoted_file_lines({ name, first, last });
}

function breaksIn(text: string): number {
  return text.split("\n").length - 1;
}

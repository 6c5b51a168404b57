// Titles that are derived from the text of a message. `app/khala/domain/titles.py` strips Markdown in the same way.

import type { PlanState } from "@khala/client";
import type { MessageView } from "./page-model.ts";

const MAX_TITLE_CHARACTERS = 48;
/** So many characters of the text are read. */
const MAX_READ_CHARACTERS = 1000;
/** Marks in marks, as in `**_this_**`. */
const MAX_NESTED_MARKS = 3;

/** What a chat began with, by which it is titled. A plan has no author. */
export type ChatOpening = { readonly text: string; readonly authorId?: string };

/** The first question of a chat or its first plan, whichever came first; null if it has neither. */
export function openingOf(question: Pick<MessageView, "head" | "text"> | null, plans: readonly PlanState[]): ChatOpening | null {
  const plan = plans.at(-1)?.entry;
  if (plan && (question === null || plan.createdAt < question.head.createdAt)) return { text: plan.title };
  return question && { text: question.text, ...(question.head.authorId !== undefined && { authorId: question.head.authorId }) };
}

/** A title from the first words of a text, without Markdown; null if it has none. */
export function titleFrom(text: string): string | null {
  const line = plainText(text);
  if (line.length <= MAX_TITLE_CHARACTERS) return line || null;
  return `${line.slice(0, MAX_TITLE_CHARACTERS).replace(/\s+\S*$/, "")}…`;
}

/** The beginning of the text in one line, without the marks of Markdown, addresses of links and blocks of code. What is nothing but marks stays as it is. */
export function plainText(markdown: string): string {
  const begin = markdown.trim().slice(0, MAX_READ_CHARACTERS);
  const prose = begin.replace(/^ {0,3}(`{3,}|~{3,})[^\n`]*\n[^]*?(?:^ {0,3}\1[^\n]*$|$(?![^]))/gm, "\n");
  const blocks = (prose.trim() ? prose : begin.replace(/^ {0,3}(?:`{3,}|~{3,})[^\n`]*$/gm, ""))
    .replace(/^[ \t]*(?:-{3,}|\*{3,}|_{3,}|={3,})[ \t]*$/gm, "")
    .replace(/^[ \t]*(?:>[ \t]?|#{1,6}[ \t]+|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?)+/gm, "")
    .replace(/!\[([^\]\n]*)\]\([^)\n]*\)/g, "$1")
    .replace(/\[([^\]\n]+)\]\([^)\n]*\)/g, "$1")
    .replace(/<(https?:\/\/[^\s<>]+)>/g, "$1");
  return oneLine(withoutMarks(blocks).replace(/(`+)([^`]+)\1/g, "$2")) || oneLine(begin);
}

/** The text without the marks around words. Those in code, inside of words, and of names such as `__init__` are none. */
function withoutMarks(text: string): string {
  let line = text;
  for (let depth = 0; depth < MAX_NESTED_MARKS; depth++)
    line = line.replace(/`[^`]+`|(^|[^A-Za-z0-9_*~])(?!__[A-Za-z][A-Za-z0-9_]*__(?![A-Za-z0-9_]))(\*{1,3}|_{1,3}|~~)(?=[^\s*_~])([^\n]*?[^\s*_~])\2(?![A-Za-z0-9_*~])/gm, (whole: string, before: string | undefined, _marks, words: string) => (before === undefined ? whole : before + words));
  return line;
}

function oneLine(text: string): string {
  return text.trim().replace(/\s+/g, " ");
}

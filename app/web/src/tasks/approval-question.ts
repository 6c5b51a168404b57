// What a request for approval asks: a sentence for a known tool, otherwise about the tool by its name. The arguments are beside it.

import { markInvisible, visibleJson } from "@khala/client";
import type { Tool, ToolBlock } from "@khala/client";
import { oneLine } from "./call-labels.ts";
import { quotedTool } from "./tool-labels.ts";
import { formatNumber, formatUnits } from "../state/format.ts";
import { m } from "../i18n/messages.ts";

/** Longer arguments are shown as JSON. */
const MAX_LISTED_CHARACTERS = 20_000;
/** Deeper values are shown as JSON. */
const MAX_LISTED_DEPTH = 3;
/** A longer list of values is folded. */
const MAX_OPEN_VALUES = 12;
const MAX_LINE_CHARACTERS = 160;
const MAX_SUBJECT_CHARACTERS = 120;
/** Where the subject stands in a sentence. Sentences have no such character. */
const PLACE = "\u0000";

type Args = Readonly<Record<string, unknown>>;
type BuiltIn = { subject?: string; ask: (subject: string) => string; isDestructive?: boolean };

/** The built-in tools whose calls are described by a sentence. Tools of MCP servers have other names. */
const BUILT_IN: Readonly<Record<string, BuiltIn>> = {
  delete_file: { subject: "path", ask: (title) => m.delete_title_question({ title }), isDestructive: true },
  write_file: { subject: "path", ask: (name) => m.change_name_question({ name }) },
  edit_file: { subject: "path", ask: (name) => m.change_name_question({ name }) },
  fetch_url: { subject: "url", ask: (name) => m.fetch_name_question({ name }) },
  run_code: { ask: () => m.run_program_question() },
};

/** The words around the subject, which is shown as code. `plain` is the whole sentence. */
export interface ApprovalQuestion {
  readonly before: string;
  readonly subject: string;
  readonly after: string;
  readonly plain: string;
  readonly isDestructive: boolean;
  /** The arguments that the sentence does not have in full. */
  readonly others: Args;
}

/** What is asked about a call. `facts` are those of `GET /api/tools`, if they are known: a server's title is no proof. */
export function questionAbout({ tool, args = {} }: Pick<ToolBlock, "tool" | "args">, facts: Pick<Tool, "title" | "destructive"> | null): ApprovalQuestion {
  const known = Object.hasOwn(BUILT_IN, tool) ? BUILT_IN[tool] : undefined;
  const value = known?.subject === undefined ? "" : args[known.subject];
  if (known && typeof value === "string" && (value !== "" || known.subject === undefined)) return sentence(known, value, args);
  const before = m.allow_tool({ tool: quotedTool(tool, facts?.title) });
  return { before, subject: "", after: "", plain: before, isDestructive: facts?.destructive === true, others: args };
}

function sentence({ subject: key = "", ask, isDestructive = false }: BuiltIn, value: string, args: Args): ApprovalQuestion {
  const subject = short(value);
  const [before = "", after = ""] = ask(PLACE).split(PLACE);
  return { before, subject, after, plain: ask(subject), isDestructive, others: without(args, key, value) };
}

/** The arguments without one that is shown in full beside them. JSON is shown with all of them. */
function without(args: Args, key: string, value: string): Args {
  if (short(value) !== markInvisible(value)) return args;
  const others = Object.fromEntries(Object.entries(args).filter(([name]) => name !== key));
  return listedArguments(others) === null ? args : others;
}

function short(value: string): string {
  return oneLine(value, MAX_SUBJECT_CHARACTERS);
}

/** An argument as a person reads it. `isLong`: the value needs lines of its own. `parts` are those of a nested value, which `isFolded` if they are many. */
export interface ListedArgument {
  readonly name: string;
  readonly value: string;
  readonly isLong: boolean;
  readonly parts: readonly ListedArgument[];
  readonly isFolded: boolean;
}

/** The arguments as a list, each with all of its characters visible; null if they are too long. */
export function listedArguments(args: Args): readonly ListedArgument[] | null {
  return visibleJson(args).length > MAX_LISTED_CHARACTERS ? null : listed(Object.entries(args), MAX_LISTED_DEPTH);
}

function listed(entries: readonly (readonly [string, unknown])[], depth: number): ListedArgument[] {
  const names = argumentNames(entries.map(([name]) => name));
  return entries.map(([, value], at) => {
    const name = names[at] ?? "";
    const isNested = typeof value === "object" && value !== null && Object.keys(value).length > 0 && !isPlainList(value);
    if (!isNested || depth === 1) return leaf(name, isNested ? visibleJson(value) : textOf(value));
    const parts = listed(Array.isArray(value) ? value.map((each: unknown, index) => [formatNumber(index + 1), each] as const) : Object.entries(value), depth - 1);
    return { name, value: m.items_count({ count: parts.length }), isLong: false, parts, isFolded: leaves(parts) > MAX_OPEN_VALUES };
  });
}

function leaf(name: string, value: string): ListedArgument {
  return { name, value, isLong: value.length > MAX_LINE_CHARACTERS || value.includes("\n"), parts: [], isFolded: false };
}

function leaves(parts: readonly ListedArgument[]): number {
  return parts.reduce((sum, part) => sum + Math.max(1, leaves(part.parts)), 0);
}

/** The names in words. Where those of two arguments are equal, such as those of `user_id` and `userId`, they stay as they are. */
function argumentNames(names: readonly string[]): string[] {
  const inWords = names.map(argumentName);
  return names.map((name, at) => {
    const words = inWords[at] ?? "";
    return inWords.indexOf(words) === inWords.lastIndexOf(words) ? words : markInvisible(name);
  });
}

/** "Customer id" for `customer_id` and `customerId`. A name of another form stays as it is. */
function argumentName(name: string): string {
  if (!/^[a-z][a-z\d]*(?:[_-][a-z\d]+|[A-Z][a-z\d]+)*$/.test(name)) return markInvisible(name);
  const words = name.replaceAll(/[_-]/g, " ").replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function isPlainList(value: object): value is string[] {
  return Array.isArray(value) && value.every((each) => typeof each === "string" && each !== "" && !each.includes("\n"));
}

function textOf(value: unknown): string {
  if (typeof value === "boolean") return value ? m.yes() : m.no();
  if (typeof value === "object" && value !== null && isPlainList(value) && value.length > 0) return unitsOf(value);
  return typeof value === "string" && value !== "" ? unambiguous(value) : JSON.stringify(value);
}

/** The texts as one list. A text that has a separator of the list is quoted. */
function unitsOf(texts: readonly string[]): string {
  const separators = [2, 4].flatMap((count) => formatUnits(Array.from({ length: count }, () => PLACE)).split(PLACE).slice(1, -1));
  // Without its spaces, unless it is a word such as "and". Nothing is left of one that is only space, so each text is quoted.
  const marks = separators.map((separator) => (/\p{L}/u.test(separator) ? separator : separator.trim()));
  return formatUnits(texts.map((text) => (marks.some((mark) => text.includes(mark)) ? quoted(text) : unambiguous(text))));
}

/** The text, quoted if it would look like a value that is no text, or like a quoted text. */
function unambiguous(text: string): string {
  return [m.yes(), m.no(), "null", "[]", "{}"].includes(text) || /^".*"$/.test(text) ? quoted(text) : markInvisible(text);
}

function quoted(text: string): string {
  return JSON.stringify(markInvisible(text));
}

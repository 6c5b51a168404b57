// What the calls of an answer did, in one sentence: "Read 3 files, searched the web and wrote report.md".

import type { ToolBlock } from "@khala/client";
import { formatLocale } from "../i18n/locale.ts";
import { m } from "../i18n/messages.ts";
import { oneLine } from "./call-labels.ts";
import { quotedTool, subjectOf } from "./tool-labels.ts";

const MAX_PHRASES = 3;
const MAX_NAME_CHARACTERS = 40;

/** The completed calls of a tool: how many, and how often each name, such as that of a file. A call without a name has "". */
export interface DoneCalls {
  readonly count: number;
  readonly names: ReadonlyMap<string, number>;
}

type Action = {
  /** `count`: of different things if the calls have names, otherwise of calls. */
  did: (inputs: { count: number }) => string;
  didName?: (inputs: { name: string }) => string;
  doing?: (inputs: { name: string }) => string;
  /** Whether it is told only if there is room for it. */
  isMinor?: boolean;
};

const SEARCH_FILES: Action = { did: m.did_search_files, doing: m.doing_search_files };
const SEARCH_MEMORIES: Action = { did: m.did_search_memories, isMinor: true };
const SEARCH_WEB: Action = { did: m.did_search_web, doing: m.doing_search_web };

/** Tools of one action are counted together. Tools of MCP servers have other names. */
const ACTIONS: Readonly<Record<string, Action>> = {
  complete_step: { did: m.did_complete_step, isMinor: true },
  delete_file: { did: m.did_delete_files, didName: m.did_delete_file, doing: m.doing_delete },
  edit_file: { did: m.did_edit_files, didName: m.did_edit_file, doing: m.doing_edit },
  fetch_url: { did: m.did_open_pages, didName: m.did_open_page, doing: m.doing_open },
  find_tools: { did: m.did_find_tools, isMinor: true },
  glob: SEARCH_FILES,
  grep: SEARCH_FILES,
  list_directory: { did: m.did_list_folders, isMinor: true },
  load_repo: { did: m.did_load_repos },
  memory_forget: { did: m.did_forget },
  memory_list: SEARCH_MEMORIES,
  memory_search: SEARCH_MEMORIES,
  memory_store: { did: m.did_remember },
  plan_create: { did: m.did_create_plans },
  plan_status: { did: m.did_check_plan, isMinor: true },
  plan_update: { did: m.did_change_plan },
  read_file: { did: m.did_read_files, didName: m.did_read_file, doing: m.doing_read },
  run_code: { did: m.did_run_programs, doing: m.doing_run_program },
  run_command: { did: m.did_run_commands, doing: m.doing_run_command },
  search_web: SEARCH_WEB,
  todo_add: { did: m.did_add_todos, isMinor: true },
  todo_complete: { did: m.did_complete_todos, isMinor: true },
  todo_list: { did: m.did_list_todos, isMinor: true },
  web_search: SEARCH_WEB,
  write_file: { did: m.did_write_files, didName: m.did_write_file, doing: m.doing_write },
};

/** The name of what a call is about: of a file without its folder, of a page its site; "" if the sentence needs none. */
export function nameInSentence({ tool, args }: Pick<ToolBlock, "tool" | "args">): string {
  if (actionOf(tool)?.didName === undefined) return "";
  const subject = subjectOf(tool, args) ?? "";
  return oneLine(tool === "fetch_url" ? siteOf(subject) : (subject.split("/").findLast(Boolean) ?? ""), MAX_NAME_CHARACTERS);
}

/** What the completed calls did, by their tools in the order of their first calls: at most three actions, and the number of further steps. */
export function doneSentence(done: ReadonlyMap<string, DoneCalls>): string {
  const phrases = phrasesOf(done);
  const shownPhrases = new Set([...phrases].sort((one, other) => Number(one.isMinor) - Number(other.isMinor)).slice(0, MAX_PHRASES));
  const rest = phrases.reduce((sum, phrase) => sum + (shownPhrases.has(phrase) ? 0 : phrase.count), 0);
  const shown = phrases.filter((phrase) => shownPhrases.has(phrase));
  const texts = [...shown.map(({ text }) => text), ...(rest > 0 ? [m.did_more({ count: rest })] : [])];
  const [first] = shown;
  return first === undefined ? "" : capitalized(joined(texts), first.name);
}

/** What a call does, such as "Reading notes.md…". */
export function doingSentence(block: Pick<ToolBlock, "tool" | "args">): string {
  const action = actionOf(block.tool);
  const name = nameInSentence(block);
  const text = action?.doing && (action.didName === undefined || name !== "") ? action.doing({ name }) : m.doing_use({ tool: quotedTool(block.tool) });
  return capitalized(text, name);
}

type Phrase = { text: string; count: number; name: string; isMinor: boolean };

function phrasesOf(done: ReadonlyMap<string, DoneCalls>): Phrase[] {
  const byAction = new Map<Action | string, { tool: string; calls: DoneCalls[] }>();
  for (const [tool, calls] of done) {
    const key = actionOf(tool) ?? tool;
    const known = byAction.get(key);
    if (known) known.calls.push(calls);
    else byAction.set(key, { tool, calls: [calls] });
  }
  return [...byAction.values()].map(({ tool, calls }) => phraseOf(tool, calls));
}

function phraseOf(tool: string, calls: readonly DoneCalls[]): Phrase {
  const count = calls.reduce((sum, each) => sum + each.count, 0);
  const action = actionOf(tool);
  if (action === undefined) return { text: m.did_use({ tool: quotedTool(tool), count }), count, name: "", isMinor: false };
  const { did, didName, isMinor = false } = action;
  const things = didName ? calls.reduce((sum, { names }) => sum + differentNames(names), 0) : count;
  const [name = ""] = things === 1 ? (calls[0]?.names.keys() ?? []) : [];
  return { text: didName && name !== "" ? didName({ name }) : did({ count: things }), count, name, isMinor };
}

/** Calls without a name are about different things. */
function differentNames(names: ReadonlyMap<string, number>): number {
  const unnamed = names.get("");
  return unnamed === undefined ? names.size : names.size - 1 + unnamed;
}

function joined(texts: readonly string[]): string {
  const [first = "", ...others] = texts;
  const last = others.pop();
  const list = others.reduce((before, next) => m.did_list_next({ list: before, next }), first);
  return last === undefined ? list : m.did_list_and({ list, last });
}

/** The sentence with a capital letter, unless it begins with the name of a file. */
function capitalized(text: string, name: string): string {
  if (name !== "" && text.startsWith(name)) return text;
  return text.slice(0, 1).toLocaleUpperCase(formatLocale()) + text.slice(1);
}

function siteOf(url: string): string {
  return URL.parse(url)?.host ?? url;
}

function actionOf(tool: string): Action | undefined {
  return Object.hasOwn(ACTIONS, tool) ? ACTIONS[tool] : undefined;
}

// What the page calls a tool: words instead of the name by which a model calls it.

import { markInvisible } from "@khala/client";
import { wordsOfTool } from "../browser/tool-words.ts";
import type { ToolLabel } from "../browser/tool-words.ts";
import { m } from "../i18n/messages.ts";

/** `subject`: the argument that a call is about. */
type BuiltIn = { words: () => string; subject?: string };

const BUILT_IN: Readonly<Record<string, BuiltIn>> = {
  complete_step: { words: () => m.tool_complete_step(), subject: "summary" },
  delete_file: { words: () => m.tool_delete_file(), subject: "path" },
  edit_file: { words: () => m.tool_edit_file(), subject: "path" },
  fetch_url: { words: () => m.tool_fetch_url(), subject: "url" },
  find_tools: { words: () => m.tool_find_tools(), subject: "query" },
  glob: { words: () => m.tool_glob(), subject: "pattern" },
  grep: { words: () => m.tool_grep(), subject: "pattern" },
  list_directory: { words: () => m.tool_list_directory(), subject: "path" },
  load_repo: { words: () => m.tool_load_repo() },
  memory_forget: { words: () => m.tool_memory_forget() },
  memory_list: { words: () => m.tool_memory_list() },
  memory_search: { words: () => m.tool_memory_search(), subject: "query" },
  memory_store: { words: () => m.tool_memory_store(), subject: "text" },
  plan_create: { words: () => m.tool_plan_create(), subject: "title" },
  plan_status: { words: () => m.tool_plan_status() },
  plan_update: { words: () => m.tool_plan_update() },
  read_blob: { words: () => m.tool_read_blob() },
  read_file: { words: () => m.tool_read_file(), subject: "path" },
  run_code: { words: () => m.tool_run_code(), subject: "code" },
  todo_add: { words: () => m.tool_todo_add(), subject: "text" },
  todo_complete: { words: () => m.tool_todo_complete() },
  todo_list: { words: () => m.tool_todo_list() },
  write_file: { words: () => m.tool_write_file(), subject: "path" },
};

/** "Read file" for a built-in tool, "Send message" of "mail" for `mail__send_message`. */
export function toolLabel(name: string): ToolLabel {
  const builtIn = builtInTool(name);
  return builtIn ? { words: builtIn.words(), server: "" } : wordsOfTool(name, Object.values(builtInTools()));
}

/** The built-in tools in words, by their names. */
export function builtInTools(): Record<string, string> {
  return Object.fromEntries(Object.entries(BUILT_IN).map(([name, { words }]) => [name, words()]));
}

/** "Send message", or "Send message (mail)" for a tool of a server. */
export function toolName(name: string): string {
  const { words, server } = toolLabel(name);
  return server ? `${words} (${server})` : words;
}

/** The tool in quotation marks, as part of a sentence. A server's `title` is used instead of the words, but never without the server's name. */
export function quotedTool(name: string, title?: string): string {
  const { words, server } = toolLabel(name);
  const tool = title ? markInvisible(title) : words;
  return server ? m.tool_of_server({ tool, server }) : m.tool_quoted({ tool });
}

/** The argument that a call of a built-in tool is about, such as the path of a file; undefined if there is none, or if it is no text. */
export function subjectOf(name: string, args: Readonly<Record<string, unknown>> = {}): string | undefined {
  const { subject = "" } = builtInTool(name) ?? {};
  const value = Object.hasOwn(args, subject) ? args[subject] : undefined;
  return typeof value === "string" && value !== "" ? value : undefined;
}

function builtInTool(name: string): BuiltIn | undefined {
  return Object.hasOwn(BUILT_IN, name) ? BUILT_IN[name] : undefined;
}

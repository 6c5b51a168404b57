// What the names and patterns of tools are called, such as those of an agent.

import { m } from "../i18n/messages.ts";
import { toolName } from "./tool-labels.ts";

/** `mail__*`, `todo_*`: what a pattern begins with; a server if two underscores end it. */
const PATTERN = /^([a-z\d][a-z\d_-]*?)(__)?\*$/i;

/** "Search in files" for `grep`, "All tools of mail" for `mail__*`, "Tools that begin with todo_" for `todo_*`. Other patterns stay as they are. */
export function patternName(pattern: string): string {
  const [, start, server] = PATTERN.exec(pattern) ?? [];
  if (pattern === "*") return m.all_tools();
  if (start === undefined) return toolName(pattern);
  return server ? m.all_tools_of_server({ server: start }) : m.tools_that_begin_with({ start });
}

// The words in the name of a tool, without messages: the service worker needs them, too.

import { markInvisible } from "@khala/client";

/** The name of a tool of an MCP server or an app, which has words in it: `server__tool` or `tool`. */
const WORDS = /^(?:([a-z\d][a-z\d_-]*?)__)?([a-z][a-z\d]*(?:[_-][a-z\d]+)*)$/i;

/** A tool in words, and the server that has it, if it is one of an MCP server. */
export interface ToolLabel {
  readonly words: string;
  readonly server: string;
}

/**
 * "Send message" of "mail" for `mail__send_message`. A name that has no words in it stays as it is, and so does one that would
 * read like one of the `builtIn` labels.
 */
export function wordsOfTool(name: string, builtIn: readonly string[]): ToolLabel {
  const [, server = "", tool] = WORDS.exec(name) ?? [];
  if (tool === undefined) return { words: markInvisible(name), server: "" };
  const words = tool.replaceAll(/[_-]/g, " ");
  const label = words.charAt(0).toUpperCase() + words.slice(1);
  const isTaken = server === "" && builtIn.some((other) => other.toLocaleLowerCase() === label.toLocaleLowerCase());
  return { words: isTaken ? name : label, server };
}

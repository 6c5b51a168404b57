// What a message to a session asks for, or why it can't be understood. Fields that nobody knows are ignored.

import type { ApproveTool, Chat, Init, SessionProblem, RepoFile, ToSession } from "../workers/session.messages.ts";

/** A message that makes no sense; `id` is its own, or null if it has none that could be answered to. */
export type Misread = { id: string | null; problem: SessionProblem };

const MOST_TEXT = 100_000;
const MOST_REASON = 2000;
const MOST_TOKEN = 8192;
const MOST_TOOL_ID = 512;
const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/iu;
const KEY = /^[\x21-\x7e]{32,256}$/u;

type Fields = Record<string, unknown>;
type Read<Payload> = { payload: Payload } | { wrong: string };

export function read(message: unknown): ToSession | Misread {
  if (!isFields(message)) return misread(null, "invalid_input", "A message must be an object.");
  const { id, type, payload = {} } = message;
  if (typeof id !== "string" || id.length < 1 || id.length > 64) return misread(null, "invalid_input", "`id` must be a text of 1 to 64 characters.");
  if (typeof type !== "string" || !Object.hasOwn(READERS, type)) return misread(id, "unknown_type", "`type` must be one of init, chat, approve_tool, load_repo and cancel.");
  if (!isFields(payload)) return misread(id, "invalid_input", "`payload` must be an object.");
  const found = READERS[type as ToSession["type"]](payload);
  return "wrong" in found ? misread(id, "invalid_input", found.wrong) : ({ id, type, payload: found.payload } as ToSession);
}

type Readers = { [Type in ToSession["type"]]: (payload: Fields) => Read<Extract<ToSession, { type: Type }>["payload"]> };

const READERS: Readers = {
  init: ({ server, anonKey, token, threadId, options }) => {
    if (server !== undefined && !isServer(server)) return { wrong: "`server` must be an http or https address." };
    if (anonKey !== undefined && !(typeof anonKey === "string" && KEY.test(anonKey))) return { wrong: "`anonKey` must be 32 to 256 characters of printable ASCII without spaces." };
    if (token !== undefined && !isText(token, 1, MOST_TOKEN)) return { wrong: `\`token\` must be a text of 1 to ${MOST_TOKEN} characters.` };
    if (threadId !== undefined && !(typeof threadId === "string" && UUID.test(threadId))) return { wrong: "`threadId` must be a UUID." };
    if (options !== undefined && !isFields(options)) return { wrong: "`options` must be an object." };
    return { payload: given<Init>({ server, anonKey, token, threadId, options }) };
  },
  chat: ({ text, options }) => {
    if (!isText(text, 0, MOST_TEXT)) return { wrong: "`text` must be a text of at most 100,000 characters." };
    if (options !== undefined && !isFields(options)) return { wrong: "`options` must be an object." };
    return { payload: { text, ...given<Pick<Chat, "options">>({ options }) } };
  },
  approve_tool: ({ toolId, approved, reason, args }) => {
    if (!isText(toolId, 1, MOST_TOOL_ID)) return { wrong: "`toolId` must be that of a `tool_pending`." };
    if (typeof approved !== "boolean") return { wrong: "`approved` must be true or false." };
    if (reason !== undefined && !isText(reason, 0, MOST_REASON)) return { wrong: "`reason` must be a text of at most 2,000 characters." };
    if (args !== undefined && !isFields(args)) return { wrong: "`args` must be an object." };
    return { payload: { toolId, approved, ...given<Pick<ApproveTool, "reason" | "args">>({ reason, args }) } };
  },
  load_repo: ({ files, url }) => {
    if ((files === undefined) === (url === undefined)) return { wrong: "Either `files` or `url` must be given." };
    if (url !== undefined) return isText(url, 1, 2048) ? { payload: { url } } : { wrong: "`url` must be a text of at most 2,048 characters." };
    if (!Array.isArray(files) || !files.every(isRepoFile)) return { wrong: "`files` must be a list of `{path, content}`, both texts." };
    return { payload: { files } };
  },
  cancel: () => ({ payload: {} }),
};

export function isRepoFile(value: unknown): value is RepoFile {
  return isFields(value) && typeof value.path === "string" && typeof value.content === "string";
}

function misread(id: string | null, code: string, message: string): Misread {
  return { id, problem: { code, message } };
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value: unknown, least: number, most: number): value is string {
  return typeof value === "string" && value.length >= least && value.length <= most;
}

function isServer(value: unknown): boolean {
  return typeof value === "string" && /^https?:$/.test(URL.parse(value)?.protocol ?? "");
}

/** The fields that are there; what they are was checked one by one. */
function given<Known extends object>(fields: Record<keyof Known, unknown>): Known {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Known;
}

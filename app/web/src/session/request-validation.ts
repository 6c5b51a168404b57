// Validates the messages to a session. Unknown fields are ignored.

import type { NewRepository } from "@khala/client";
import type { ApproveTool, Chat, Init, SessionProblem, RepoFile, ToSession } from "../workers/session.messages.ts";

/** An invalid message. `id` is the message's own, or null if it has no valid id. */
export type InvalidRequest = { id: string | null; problem: SessionProblem };

const MAX_TEXT_CHARACTERS = 100_000;
const MAX_REASON_CHARACTERS = 2000;
const MAX_TOKEN_CHARACTERS = 8192;
const MAX_TOOL_ID_CHARACTERS = 512;
/** Of a branch, and of a folder. */
const MAX_NAME_CHARACTERS = 255;
const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/iu;
const KEY = /^[\x21-\x7e]{32,256}$/u;

type Fields = Record<string, unknown>;
type Read<Payload> = { payload: Payload } | { wrong: string };

export function validateRequest(message: unknown): ToSession | InvalidRequest {
  if (!isFields(message)) return invalidRequest(null, "invalid_input", "A message must be an object.");
  const { id, type, payload = {} } = message;
  if (typeof id !== "string" || id.length < 1 || id.length > 64) return invalidRequest(null, "invalid_input", "`id` must be a text of 1 to 64 characters.");
  if (typeof type !== "string" || !Object.hasOwn(VALIDATORS, type)) return invalidRequest(id, "unknown_type", "`type` must be one of init, chat, approve_tool, load_repo and cancel.");
  if (!isFields(payload)) return invalidRequest(id, "invalid_input", "`payload` must be an object.");
  const result = VALIDATORS[type as ToSession["type"]](payload);
  return "wrong" in result ? invalidRequest(id, "invalid_input", result.wrong) : ({ id, type, payload: result.payload } as ToSession);
}

type Validators = { [Type in ToSession["type"]]: (payload: Fields) => Read<Extract<ToSession, { type: Type }>["payload"]> };

const VALIDATORS: Validators = {
  init: ({ server, anonKey, token, threadId, options }) => {
    if (server !== undefined && !isServer(server)) return { wrong: "`server` must be an http or https address." };
    if (anonKey !== undefined && !(typeof anonKey === "string" && KEY.test(anonKey))) return { wrong: "`anonKey` must be 32 to 256 characters of printable ASCII without spaces." };
    if (token !== undefined && !isText(token, 1, MAX_TOKEN_CHARACTERS)) return { wrong: `\`token\` must be a text of 1 to ${MAX_TOKEN_CHARACTERS} characters.` };
    if (threadId !== undefined && !(typeof threadId === "string" && UUID.test(threadId))) return { wrong: "`threadId` must be a UUID." };
    if (options !== undefined && !isFields(options)) return { wrong: "`options` must be an object." };
    return { payload: given<Init>({ server, anonKey, token, threadId, options }) };
  },
  chat: ({ text, options }) => {
    if (!isText(text, 0, MAX_TEXT_CHARACTERS)) return { wrong: "`text` must be a text of at most 100,000 characters." };
    if (options !== undefined && !isFields(options)) return { wrong: "`options` must be an object." };
    return { payload: { text, ...given<Pick<Chat, "options">>({ options }) } };
  },
  approve_tool: ({ toolId, approved, reason, args }) => {
    if (!isText(toolId, 1, MAX_TOOL_ID_CHARACTERS)) return { wrong: "`toolId` must be that of a `tool_pending`." };
    if (typeof approved !== "boolean") return { wrong: "`approved` must be true or false." };
    if (reason !== undefined && !isText(reason, 0, MAX_REASON_CHARACTERS)) return { wrong: "`reason` must be a text of at most 2,000 characters." };
    if (args !== undefined && !isFields(args)) return { wrong: "`args` must be an object." };
    return { payload: { toolId, approved, ...given<Pick<ApproveTool, "reason" | "args">>({ reason, args }) } };
  },
  load_repo: ({ files, url, ref, path, into }) => {
    if ((files === undefined) === (url === undefined)) return { wrong: "Either `files` or `url` must be given." };
    if (url !== undefined) {
      if (!isText(url, 1, 2048)) return { wrong: "`url` must be a text of at most 2,048 characters." };
      const wrong = Object.entries({ ref, path, into }).find(([, value]) => value !== undefined && !isText(value, 1, MAX_NAME_CHARACTERS));
      if (wrong) return { wrong: `\`${wrong[0]}\` must be a text of 1 to ${MAX_NAME_CHARACTERS} characters.` };
      return { payload: { url, ...given<Omit<NewRepository, "url">>({ ref, path, into }) } };
    }
    if (!Array.isArray(files) || !files.every(isRepoFile)) return { wrong: "`files` must be a list of `{path, content}`, both texts." };
    return { payload: { files } };
  },
  cancel: () => ({ payload: {} }),
};

export function isRepoFile(value: unknown): value is RepoFile {
  return isFields(value) && typeof value.path === "string" && typeof value.content === "string";
}

function invalidRequest(id: string | null, code: string, message: string): InvalidRequest {
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

/** Only the fields that are present; each was validated before. */
function given<Known extends object>(fields: Record<keyof Known, unknown>): Known {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Known;
}

// What this client knows of a thread, as pure functions: no socket, no clock, no DOM.
//
// The one law: folding parts k..n onto the content at k gives the content at n. So a reader that holds a message at any
// seq goes on with parts alone, and each part counts exactly once however often it arrives.

export const EMPTY = Object.freeze({ revision: null, thread: null, messages: [], hasMore: false });

/** An account's list of threads, of which nothing was heard yet. */
export const UNLISTED = Object.freeze({ revision: null, entries: new Map(), hasMore: false });

/** The state that a snapshot says; whatever was known before is forgotten. */
export function fromSnapshot(frame) {
  const messages = frame.messages.map((message) => ({ ...message, content: message.content ?? [] }));
  return { revision: frame.revision, thread: frame.thread, messages, hasMore: frame.hasMore === true };
}

/**
 * The state after a delta, and what became of it: "applied"; "stale", it was known already; "gap", something before it is
 * missing, so subscribe again with `after`; "broken", parts of a message are missing, so only a snapshot will do.
 */
export function applyDelta(state, frame) {
  if (state.revision === null) return { state, outcome: "gap" };
  if (frame.revision <= state.revision) return { state, outcome: "stale" };
  if (frame.from !== state.revision) return { state, outcome: "gap" };
  const heads = withHeads(state, frame.messages ?? []);
  const messages = withParts(heads, frame.parts ?? [], state.hasMore);
  if (messages === null || messages.some(lacksParts)) return { state, outcome: "broken" };
  const thread = frame.thread ?? { ...state.thread, revision: frame.revision };
  return { state: { ...state, revision: frame.revision, thread, messages }, outcome: "applied" };
}

/** The state with a page of older messages before those it has. */
export function withEarlier(state, page) {
  const known = new Set(state.messages.map((message) => message.id));
  const older = page.items.filter((message) => !known.has(message.id));
  const items = older.map((message) => ({ ...message, content: message.content ?? [] }));
  return { ...state, messages: [...items, ...state.messages], hasMore: page.hasMore === true };
}

/** The account's list after a frame, and what became of it: "applied", "stale" or "gap", as with deltas. */
export function applyAccount(list, frame) {
  const told = frame.threads.map((entry) => [entry.thread.id, entry]);
  if (frame.whole) return { list: { revision: frame.revision, entries: new Map(told), hasMore: frame.hasMore === true }, outcome: "applied" };
  if (list.revision === null || frame.from > list.revision) return { list, outcome: "gap" };
  if (frame.revision <= list.revision) return { list, outcome: "stale" };
  if (frame.from !== list.revision) return { list, outcome: "gap" };
  const entries = new Map([...list.entries, ...told]);
  for (const id of frame.removed) entries.delete(id);
  return { list: { ...list, revision: frame.revision, entries }, outcome: "applied" };
}

function withHeads(state, heads) {
  const messages = [...state.messages];
  for (const head of heads) {
    const index = messages.findIndex((message) => message.id === head.id);
    if (index >= 0) messages[index] = merged(messages[index], head);
    else if (!isOlderThan(head, state)) messages.push(merged({ content: [], seq: 0 }, head));
  }
  return messages;
}

/** A head tells of status and finish; content and seq stay ours, for they are what we have folded ourselves. */
function merged(own, head) {
  const whole = head.content !== undefined && head.content !== null && head.seq >= own.seq;
  const { content, seq } = whole ? head : own;
  return { ...own, ...head, content, seq, finish: head.finish ?? own.finish, told: head.seq };
}

/** Whether a message that we don't hold lies before the page that we do hold. */
function isOlderThan(head, state) {
  const oldest = state.messages[0];
  return state.hasMore && oldest !== undefined && Date.parse(head.createdAt) < Date.parse(oldest.createdAt);
}

function withParts(messages, parts, hasMore) {
  const byMessage = new Map();
  for (const part of parts) {
    if (!byMessage.has(part.messageId)) byMessage.set(part.messageId, []);
    byMessage.get(part.messageId).push(part);
  }
  const result = [...messages];
  for (const [id, own] of byMessage) {
    const index = result.findIndex((message) => message.id === id);
    if (index < 0 && !hasMore) return null;
    if (index < 0) continue; // of a message further up than we have loaded
    const after = withOwnParts(result[index], own);
    if (after === null) return null;
    result[index] = after;
  }
  return result;
}

function withOwnParts(message, parts) {
  const fresh = [];
  for (const part of parts.toSorted((one, other) => one.seq - other.seq)) {
    const next = message.seq + fresh.length;
    if (part.seq > next) return null;
    if (part.seq === next) fresh.push(part);
  }
  if (fresh.length === 0) return message;
  const last = (kind) => fresh.findLast((part) => part.kind === kind)?.data;
  return {
    ...message,
    seq: message.seq + fresh.length,
    content: fold(message.content, fresh),
    finish: last("finish") ?? message.finish,
    failure: last("error") ?? message.failure,
    round: last("step") ?? message.round,
    began: beginnings(message.began, fresh),
  };
}

/** When tool calls began to run, in milliseconds of the server's clock, by their ids. */
function beginnings(before, parts) {
  const found = parts.filter(({ kind, data }) => kind === "tool-status" && data.state === "running");
  return found.length ? { ...before, ...Object.fromEntries(found.map(({ data, createdAt }) => [data.toolCallId, Date.parse(createdAt)])) } : before;
}

/** The state with what a snapshot doesn't say of the answer `messageId`: which step it is at, and since when tools run. */
export function withProgress(state, messageId, parts) {
  const round = parts.findLast((part) => part.kind === "step")?.data;
  const messages = state.messages.map((message) =>
    message.id === messageId ? { ...message, round: message.round ?? round, began: { ...beginnings({}, parts), ...message.began } } : message,
  );
  return { ...state, messages };
}

/** The tool calls of a content that wait for approval, or null if there are none. */
export function waiting(content) {
  const blocked = content.filter((block) => block.type === "tool" && block.state === "blocked");
  return blocked.length ? blocked : null;
}

/** An answer that has ended, by its head, with more parts than have come. */
function lacksParts({ status, seq, told = 0 }) {
  return ["final", "error", "canceled"].includes(status) && seq < told;
}

/** The content after these parts; kinds that this version does not know change nothing. */
export function fold(content, parts) {
  const blocks = [...content];
  for (const { kind, data } of parts) FOLDS[kind]?.(blocks, data);
  return blocks;
}

const FOLDS = {
  "text-delta": (blocks, { text }) => appendText(blocks, text),
  "tool-call": (blocks, { toolCallId, tool, step, args, argsBlob }) => updateTool(blocks, toolCallId, { tool, step, args, argsBlob }),
  "tool-status": (blocks, { toolCallId, ...said }) => updateTool(blocks, toolCallId, status(said)),
  "tool-result": (blocks, { toolCallId, ok, summary, output, blob, durationMs }) =>
    updateTool(blocks, toolCallId, { state: ok ? "completed" : "failed", summary, output, blob, durationMs }),
  notice: (blocks, { code, message }) => blocks.push({ type: "notice", code, message }),
  compaction: (blocks, { summary, messageId, step }) => blocks.push({ type: "compaction", summary, messageId, step: step ?? 0 }),
};

/** What a status says; only new arguments take the place of the old ones. */
function status({ state, reason, digest, expiresAt, args, argsBlob }) {
  const said = { state, reason, digest, expiresAt };
  return args === undefined && argsBlob === undefined ? said : { ...said, args, argsBlob };
}

function appendText(blocks, text) {
  const last = blocks.at(-1);
  if (!text) return;
  if (last?.type === "text") blocks[blocks.length - 1] = { ...last, text: last.text + text };
  else blocks.push({ type: "text", text });
}

/** An orphan, a result whose call we never saw, shows rather than vanishes. */
function updateTool(blocks, toolCallId, changes) {
  const index = blocks.findLastIndex((block) => block.type === "tool" && block.toolCallId === toolCallId);
  if (index >= 0) blocks[index] = { ...blocks[index], ...changes };
  else blocks.push({ type: "tool", toolCallId, tool: "unknown", state: "queued", ...changes });
}

/** All text of a message, joined. */
export function textOf(message) {
  return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}

/** The files of a message. */
export function filesOf(message) {
  return message.content.flatMap((block) => (block.type === "file" ? [block.blob] : []));
}

/** How a message stands: "writing", "done", "stopped" or "failed". A finish outranks the row's status. */
export function standing(message) {
  const ends = { canceled: "stopped", error: "failed" };
  if (message.finish) return ends[message.finish.reason] ?? "done";
  if (["draft", "streaming"].includes(message.status)) return "writing";
  return ends[message.status] ?? "done";
}

/** The answer that is being written, if there is one. */
export function activeAnswer(state) {
  return state.messages.findLast((message) => message.role === "assistant" && standing(message) === "writing") ?? null;
}

/** Milliseconds before try number `attempt` (from 0): exponential between 250 and 8,000, jittered by `random` in [0, 1). */
export function backoff(attempt, random) {
  const ceiling = Math.min(8000, 500 * 2 ** Math.min(attempt, 10));
  return 250 + random * (ceiling - 250);
}

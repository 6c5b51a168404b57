// The messages on their way: shown at once, sent until the server says yes or no, and shown as not sent if it says no.

import { keysOf, noteSent } from "./chats.js";
import { Refusal, call, filesOf, insist, isPassing, newId, pause } from "./khala.js";

const WORDS = {
  run_active: "An answer is still being written; wait for it or stop it.",
  rate_limited: "That was too much at once.",
  budget_exhausted: "The budget for this chat is used up for now.",
  payload_too_large: "The text is too long for the server.",
  unavailable: "The server can’t take it right now.",
  thread_not_found: "This chat is not on the server any more.",
  forbidden: "You may look on, not write here.",
  unauthorized: "You may not write in this chat.",
};
const NO_USE_REPEATING = ["payload_too_large", "invalid_input", "thread_not_found", "forbidden", "unauthorized"];

/** An error of a request, said to the person. */
export function inWords(error) {
  if (!(error instanceof Refusal)) return "The server can’t be reached.";
  if (error.code === "invalid_input") return `The server did not accept it: ${error.errors[0]?.message ?? error.message}`;
  return WORDS[error.code] ?? error.message;
}

/** Messages that are not in the followed state yet, in the shape of messages, each with how it stands in `pending`. */
export class Outbox {
  #entries = [];
  #changed;

  constructor(changed) {
    this.#changed = changed;
  }

  of(chatId) {
    return this.#entries.filter((entry) => entry.chatId === chatId);
  }

  /** Show the text and the files as a message and send it; `options` say how it is to be answered. */
  add(chat, text, { files = [], options = {} } = {}) {
    const id = newId();
    noteSent(chat.id, id);
    const content = [{ type: "text", text }, ...files.map((blob) => ({ type: "file", blob }))];
    this.#entries.push({ id, chatId: chat.id, keys: keysOf(chat), role: "user", content, options, pending: null });
    this.resend(id);
  }

  /** Send under the same id as before, so that a message which did arrive is not sent twice. */
  async resend(id) {
    this.#set(id, { phase: "sending", attempt: 1 });
    try {
      const { runId, revision } = await this.#post(id);
      this.#set(id, { phase: "sent", runId, revision });
    } catch (error) {
      if (!(error instanceof Refusal) && !isPassing(error)) throw error;
      const retryAt = error.retryAfter ? Date.now() + 1000 * error.retryAfter : 0;
      this.#set(id, { phase: "failed", reason: inWords(error), retryAt, final: NO_USE_REPEATING.includes(error.code) });
    }
  }

  #post(id) {
    const { chatId, keys, content, options } = this.#entries.find((entry) => entry.id === id);
    const body = { messageId: id, text: content[0].text, attachments: filesOf({ content }).map(({ blobId }) => blobId), options };
    let attempt = 1;
    const wait = (delay) => (this.#set(id, { phase: "sending", attempt: ++attempt }), pause(delay));
    return insist(() => call("POST", `/api/threads/${chatId}/send`, { body, ...keys }), { wait });
  }

  #set(id, pending) {
    this.#entries = this.#entries.map((entry) => (entry.id === id ? { ...entry, pending } : entry));
    this.#changed();
  }

  /** Take a message out; it will not be shown any more. */
  take(id) {
    const entry = this.#entries.find((one) => one.id === id);
    this.#drop((one) => one.id === id);
    return entry;
  }

  /** Drop what has arrived, and what was reset away before it was seen. */
  settle(chatId, { messages, revision }) {
    const arrived = new Set(messages.map((message) => message.id));
    this.#drop((entry) => entry.chatId === chatId && (arrived.has(entry.id) || entry.pending.revision <= revision));
  }

  clear(chatId) {
    this.#drop((entry) => entry.chatId === chatId);
  }

  #drop(leaves) {
    this.#entries = this.#entries.filter((entry) => !leaves(entry));
    this.#changed();
  }
}

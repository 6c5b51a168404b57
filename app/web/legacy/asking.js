// Asking the server for what the person wants of a chat, with the keys that this browser has to it.

import { keysOf } from "./chats.js";
import { Refusal, backoff, call, insist, isPassing, pause } from "./khala.js";
import { inWords } from "./outbox.js";

/** Rethrow what is no answer of the server's and no failure to reach it: a mistake of ours. */
function onlyFailures(error) {
  if (!(error instanceof Refusal) && !isPassing(error)) throw error;
}

/** Ask and insist; undefined if it can't be done, which is told by `say`, unless its code is among `spares`: null then. */
export async function attempt(say, what, method, path, { chat, body, spares = [] }) {
  try {
    return await insist(() => call(method, path, { body, ...keysOf(chat) }), { tries: 5 });
  } catch (error) {
    onlyFailures(error);
    if (spares.includes(error.code)) return null;
    say(`Could not ${what}. ${inWords(error)}`);
    return undefined;
  }
}

/** Ask for what is no great loss if it fails: null then. */
export async function quietly(method, path, { chat = {}, body } = {}) {
  try {
    return await insist(() => call(method, path, { body, ...keysOf(chat) }), { tries: 3 });
  } catch (error) {
    onlyFailures(error);
    return null;
  }
}

/**
 * Create the chat on the server, however long that takes: its thread and the key, if it has one. Null once it is not
 * `wanted()` any more. `waits(until)` is told of each wait. Throws the server's no.
 */
export async function create(chat, { wanted, waits }) {
  for (let attempt = 0; wanted(); attempt++) {
    try {
      return await call("POST", "/api/threads", { body: { id: chat.id, anonKey: chat.key } });
    } catch (error) {
      if (!isPassing(error) && error.status !== 429) throw error;
      const delay = Math.max(backoff(attempt, Math.random()), 1000 * (error.retryAfter ?? 0));
      if (wanted()) waits(Date.now() + delay);
      await pause(delay);
    }
  }
  return null;
}

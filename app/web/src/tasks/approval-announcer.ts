// Announces tool calls that need approval to screen readers: each once, and several at the same time in one sentence.

import { LruCache } from "./lru-cache.ts";
import { quotedTool } from "./tool-labels.ts";
import { m } from "../i18n/messages.ts";

/** The number of announced requests that are remembered. */
const MAX_REMEMBERED_REQUESTS = 1_000;

export class ApprovalAnnouncer {
  readonly #say: (text: string) => void;
  readonly #announced = new LruCache<string, true>(MAX_REMEMBERED_REQUESTS);
  #tools: string[] = [];

  constructor(say: (text: string) => void) {
    this.#say = say;
  }

  /** A request for approval, identified by `id`, is shown for a call of `tool`. */
  announce(id: string, tool: string): void {
    if (this.#announced.get(id)) return;
    this.#announced.set(id, true);
    this.#tools.push(tool);
    if (this.#tools.length === 1) setTimeout(() => this.#speak());
  }

  #speak(): void {
    const [first = "", ...others] = this.#tools.splice(0);
    this.#say(others.length > 0 ? m.tool_calls_need_approval({ count: others.length + 1 }) : m.tool_needs_approval({ tool: quotedTool(first) }));
  }
}

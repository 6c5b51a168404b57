// What the person asks of the open chat: send, stop, ask again, empty it, read further up.

import * as chats from "./chats.js";
import { confirmed } from "./dialogs.js";
import { activeAnswer, filesOf, textOf } from "./khala.js";

const RESET = { title: "Reset this conversation?", text: "All of its messages are deleted, for everyone who follows it. This can’t be undone.", yes: "Reset" };

export class Asked {
  #page;

  /** `page`: `{shown, outbox, composer, attachments, autopilot, scroller, feed, attempt}` of the page. */
  constructor(page) {
    this.#page = page;
  }

  #outgoing() {
    return this.#page.outbox.of(this.#page.shown.chat.id);
  }

  /** Whether anything was asked yet. */
  get any() {
    return this.#page.shown.state.messages.some((message) => message.role === "user") || this.#outgoing().length > 0;
  }

  get isBusy() {
    return activeAnswer(this.#page.shown.state) !== null || this.#outgoing().some(({ pending }) => pending.phase !== "failed");
  }

  send(text, files = []) {
    const { shown, scroller, outbox, autopilot } = this.#page;
    if (chats.find(shown.chat.id)) shown.chat = chats.update(shown.chat, { usedAt: Date.now() });
    scroller.following = true;
    outbox.add(shown.chat, text, { files, options: autopilot.options });
  }

  async stop() {
    const runId = activeAnswer(this.#page.shown.state)?.runId ?? this.#outgoing().find(({ pending }) => pending.runId)?.pending.runId;
    if (runId) await this.#page.attempt("stop the answer", "POST", `/api/runs/${runId}/cancel`, { body: {} });
  }

  /** Take back what was not sent, to change it. */
  edit(id) {
    const { composer, outbox, attachments } = this.#page;
    const entry = outbox.take(id);
    attachments.put(filesOf(entry));
    composer.put(textOf(entry));
  }

  /** Ask what this answer was the answer to once more; its files stay with the question that has them. */
  again(id) {
    const { composer, shown } = this.#page;
    const { messages } = shown.state;
    const index = messages.findIndex((message) => message.id === id);
    const question = messages.slice(0, index).findLast((message) => message.role === "user");
    if (!question || this.isBusy) return;
    if (textOf(question).trim()) this.send(textOf(question));
    else composer.say("Attach the files again, please.");
  }

  async reset() {
    const { shown, attempt, composer } = this.#page;
    if (!(await confirmed(RESET))) return;
    await attempt("reset the conversation", "POST", `/api/threads/${shown.chat.id}/reset`);
    composer.focus();
  }

  async loadEarlier(button) {
    const { shown, attempt, feed } = this.#page;
    const { chat, state } = shown;
    button.disabled = true;
    const page = await attempt("load earlier messages", "GET", `/api/threads/${chat.id}/messages?before=${state.messages[0].id}&limit=50`);
    button.disabled = false;
    if (page) feed.adoptEarlier(chat.id, page);
  }
}

// The person's ratings of the answers of a chat, read once when the first of its answers is shown.

import { SvelteMap } from "svelte/reactivity";
import { isRequestError } from "@khala/client";
import type { Items } from "@khala/client";
import type { ChatView } from "../state/page-model.ts";

/** The feedback of the person on an answer, without its times. */
export type Feedback = { readonly messageId: string; readonly rating: "up" | "down"; readonly reason?: string };

type Caller = Pick<ChatView, "id" | "call">;
type Rating = Pick<Feedback, "rating" | "reason">;

export class AnswerRatings {
  #chatId: string | null = null;
  readonly #ratings = new SvelteMap<string, Rating>();

  of(chatId: string, messageId: string): Rating | null {
    return this.#ratings.get(`${chatId} ${messageId}`) ?? null;
  }

  /** Read the ratings of the chat, unless it is the one that was read last. Without them the thumbs are shown unpressed. */
  async load(chat: Caller): Promise<void> {
    if (this.#chatId === chat.id) return;
    this.#chatId = chat.id;
    this.#ratings.clear();
    try {
      const { items } = await chat.call<Items<Feedback>>("GET", `/api/threads/${chat.id}/feedback`);
      for (const item of items) this.#ratings.set(`${chat.id} ${item.messageId}`, item);
    } catch (error) {
      if (!isRequestError(error)) throw error;
      if (this.#chatId === chat.id) this.#chatId = null;
    }
  }

  /** Rate an answer, or remove the rating (null). Errors as those of `request`. */
  async rate(chat: Caller, messageId: string, rating: Rating | null): Promise<void> {
    const path = `/api/messages/${messageId}/feedback`;
    if (rating === null) {
      await chat.call("DELETE", path);
      this.#ratings.delete(`${chat.id} ${messageId}`);
    } else this.#ratings.set(`${chat.id} ${messageId}`, await chat.call<Feedback>("PUT", path, rating));
  }
}

export const answerRatings = new AnswerRatings();

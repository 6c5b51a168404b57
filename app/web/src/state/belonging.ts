// Whose the chats are: what signing in and out does to what is open, and keeping the chats of this browser.

import type { User } from "../khala/frames.ts";
import { isRequestError } from "../khala/requests.ts";
import type { BrowserAccount } from "./account.svelte.ts";
import type { OpenChat } from "./chat.svelte.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import type { ChatList } from "./list.svelte.ts";
import type { Outgoings } from "./outgoings.svelte.ts";
import type { Stream } from "./stream.ts";
import { errorMessage } from "./error-messages.ts";
import type { Page } from "./shape.ts";

/** What of the page belongs to somebody. */
export interface Owned extends Pick<Page, "toast"> {
  readonly account: BrowserAccount;
  readonly chats: ChatList;
  readonly keyring: Keyring;
  readonly outgoings: Outgoings;
  readonly stream: Stream;
  readonly chat: OpenChat | null;
  dialog: Page["dialog"];
  keepable: number;
}

/** What can be done with the open chat. */
export type Acts = { reopen: (known: KnownChat) => void; follow: (chat: OpenChat) => void; forget: (id: string) => void };

export class Belonging {
  readonly #page: Owned;
  readonly #acts: Acts;

  constructor(page: Owned, acts: Acts) {
    this.#page = page;
    this.#acts = acts;
  }

  /** Somebody has signed in or out, here or in another tab. What an account could read goes with it. */
  turned(before: User | null): void {
    const { account, chat, outgoings, stream } = this.#page;
    if (before !== null && before.id !== account.user?.id) {
      stream.say({ type: "clear" });
      outgoings.leave(before.id);
    }
    if (account.user === null && this.#page.dialog === "account") this.#page.dialog = null;
    if (chat) void stream.as(() => Promise.resolve(this.#takeAccount()));
  }

  #takeAccount(): void {
    const { account, chats, stream } = this.#page;
    chats.clear();
    stream.say({ type: "watch", isOn: false });
    stream.say({ type: "watch", isOn: account.user !== null });
    this.takeKeys();
    const { chat } = this.#page;
    if (chat?.revision != null && (account.user || chat.known.shareKey)) void chat.learnRole();
  }

  /** The open chat may be the account's by now, or have lost the account; it goes on as whatever it is. */
  takeKeys(): void {
    const { chat, keyring } = this.#page;
    if (!chat) return;
    const { known } = chat;
    const kept = keyring.find(chat.id);
    if (known.key && known.created && !kept) chat.told = "owner";
    chat.known = kept ?? { id: chat.id, title: known.title, created: known.created };
    if (chat.refusal) this.#acts.reopen(chat.known);
    else if (chat.revision !== null) this.#acts.follow(chat);
  }

  /** What only the account could open must not stay in sight. */
  leaves(): void {
    const id = this.#page.chat?.id;
    if (id && !this.#page.keyring.find(id)) this.#acts.forget(id);
  }

  /** After a login elsewhere: chats without a word in them come along at once, for the others the person is asked. */
  async offer(): Promise<void> {
    const mine = this.#page.keyring.anonymous();
    this.#page.keepable = mine.filter(({ title }) => title).length;
    await this.#claim(() => this.#page.account.claim(mine.filter(({ title }) => !title)));
  }

  async keep(yes: boolean): Promise<void> {
    this.#page.keepable = 0;
    if (yes) await this.#claim(() => this.#page.account.claimAll());
  }

  async #claim(claim: () => Promise<void>): Promise<void> {
    try {
      await claim();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.#page.toast(`Couldn’t add the chats to your account. ${errorMessage(error)}`);
    }
  }
}

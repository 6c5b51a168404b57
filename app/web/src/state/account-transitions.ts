// Moves the page from one identity to another: after signing in, signing out and claiming the browser's anonymous chats.

import { isRequestError } from "@khala/client";
import type { User } from "@khala/client";
import type { AgentCatalog } from "./agents.svelte.ts";
import type { BrowserAccount } from "./account.svelte.ts";
import type { OpenChat } from "./chat.svelte.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import type { ChatList } from "./chat-list.svelte.ts";
import type { SendQueue } from "./send-queue.svelte.ts";
import type { StreamClient } from "./stream-client.ts";
import { errorMessage } from "./error-messages.ts";
import type { PageModel } from "./page-model.ts";
import { m } from "../i18n/messages.ts";

/** The parts of the page that depend on the account. */
export interface AccountOwnedState extends Pick<PageModel, "toast"> {
  readonly account: BrowserAccount;
  readonly agents: AgentCatalog;
  readonly chats: ChatList;
  readonly keyring: Keyring;
  readonly sendQueue: SendQueue;
  readonly stream: StreamClient;
  readonly chat: OpenChat | null;
  dialog: PageModel["dialog"];
  claimableCount: number;
}

/** Actions on the open chat. */
export type ChatActions = { reopen: (known: KnownChat) => void; follow: (chat: OpenChat) => void; forget: (id: string) => void };

export class AccountTransitions {
  readonly #page: AccountOwnedState;
  readonly #actions: ChatActions;

  constructor(page: AccountOwnedState, acts: ChatActions) {
    this.#page = page;
    this.#actions = acts;
  }

  /** The account has changed, here or in another tab. Removes what only the previous account could read. */
  handleUserChanged(before: User | null): void {
    const { account, chat, keyring, sendQueue: outgoings, stream } = this.#page;
    if (before?.id !== account.user?.id) this.#page.agents.changeOwner(before?.id ?? null);
    if (before !== null && before.id !== account.user?.id) {
      stream.post({ type: "clear" });
      for (const { id } of keyring.unfiled(before.id)) keyring.removeKeys(id);
      outgoings.removeAccount(before.id);
    }
    if (chat) void stream.changeIdentity(() => Promise.resolve(this.#applyAccount()));
  }

  #applyAccount(): void {
    const { account, chats, stream } = this.#page;
    chats.clear();
    stream.post({ type: "watch", isOn: false });
    stream.post({ type: "watch", isOn: account.user !== null });
    this.reloadKeys();
    const { chat } = this.#page;
    if (chat?.revision != null && (account.user || chat.known.shareKey)) void chat.loadRole();
  }

  /** The access to the open chat may have changed: follow it with the keys that this browser has now. */
  reloadKeys(): void {
    const { chat, keyring } = this.#page;
    if (!chat) return;
    const { known } = chat;
    const kept = keyring.find(chat.id);
    if (known.key && known.created && !kept) chat.roleFromServer = "owner";
    chat.known = kept ?? { id: chat.id, title: known.title, created: known.created };
    if (chat.refusal) this.#actions.reopen(chat.known);
    else if (chat.revision !== null) this.#actions.follow(chat);
  }

  /** Close the open chat if only the account that has left could open it. */
  handleAccountLeft(): void {
    const id = this.#page.chat?.id;
    const kept = id ? this.#page.keyring.find(id) : null;
    if (id && (!kept || (kept.created && kept.ownerId))) this.#actions.forget(id);
  }

  /** After an external sign-in, claim the empty anonymous chats, and count the others for a question to the person. */
  async offerClaim(): Promise<void> {
    const mine = this.#page.keyring.claimable();
    this.#page.claimableCount = mine.filter(({ title }) => title).length;
    await this.#claim(() => this.#page.account.claim(mine.filter(({ title }) => !title)));
  }

  async answerClaimOffer(yes: boolean): Promise<void> {
    this.#page.claimableCount = 0;
    if (yes) await this.#claim(() => this.#page.account.claimAll());
  }

  async #claim(claim: () => Promise<void>): Promise<void> {
    try {
      await claim();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.#page.toast(m.couldnt_add_chats({ reason: errorMessage(error) }));
    }
  }
}

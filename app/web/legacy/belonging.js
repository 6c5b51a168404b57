// Whose the chats are: what signing in and out does to them, and to rename, delete, join and keep them.

import * as accounts from "./account.js";
import * as chats from "./chats.js";
import { confirmed } from "./dialogs.js";
import { Refusal, UNLISTED, isPassing } from "./khala.js";
import { inWords } from "./outbox.js";

const { account } = accounts;

export class Belonging {
  #page;

  /** `page`: `{shown, change, feed, open, follow, forget, learnRole, attempt, say}` of the page. */
  constructor(page) {
    this.#page = page;
  }

  /** Somebody has signed in or out, here or in another tab. */
  take() {
    const { feed, change, shown, learnRole } = this.#page;
    feed.watch(false);
    feed.watch(account.user !== null);
    change({ list: UNLISTED });
    this.#takeKeys();
    if (shown.state.revision !== null && (account.user || shown.chat.shareKey)) learnRole();
  }

  /** The open chat may be the account's by now, or have lost the account; it goes on as whatever it is. */
  #takeKeys() {
    const { shown, change, open, follow } = this.#page;
    const { chat } = shown;
    const kept = chats.find(chat.id);
    const isClaimed = Boolean(chat.key && chat.created && !kept);
    change({ chat: kept ?? { id: chat.id, title: chat.title, created: chat.created }, ...(isClaimed && { role: "owner" }) });
    if (shown.refused) open(shown.chat, false);
    else if (shown.state.revision !== null) follow();
  }

  signIn(way, fields) {
    const { feed, shown } = this.#page;
    return feed.as(() => accounts.signIn(way, fields, shown.chat.id));
  }

  async signOut() {
    const elsewhere = await this.#page.feed.as(async () => {
      const address = await accounts.signOut();
      this.#leave();
      return address;
    });
    if (elsewhere) location.assign(elsewhere);
  }

  removeAccount(password) {
    return this.#page.feed.as(async () => {
      await accounts.remove(password);
      this.#leave();
    });
  }

  /** What only the account could open must not stay in sight. */
  #leave() {
    const { shown, forget } = this.#page;
    if (!chats.find(shown.chat.id)) forget(shown.chat.id);
  }

  /** After a login elsewhere: chats without a word in them come along at once, for the others the person is asked. */
  async offerToKeep() {
    const mine = chats.anonymous();
    this.#page.change({ keepable: mine.filter(({ title }) => title).length });
    await this.#claim(mine.filter(({ title }) => !title));
  }

  async keepAll() {
    this.#page.change({ keepable: 0 });
    await this.#claim(chats.anonymous());
  }

  async #claim(mine) {
    if (mine.length === 0) return;
    await this.#page.feed.as(async () => {
      try {
        await accounts.claim(mine);
      } catch (error) {
        if (!(error instanceof Refusal) && !isPassing(error)) throw error;
        this.#page.say(`Could not move the chats to your account. ${inWords(error)}`);
      }
      this.#takeKeys();
    });
  }

  async rename({ id }, title) {
    const { attempt, change } = this.#page;
    const chat = chats.known(id);
    const thread = await attempt("rename the chat", "PATCH", `/api/threads/${id}`, { chat, body: { title } });
    if (thread && chats.find(id)) chats.update(chat, { title, named: true });
    change({});
  }

  /** Delete a chat of one's own; one of somebody else's is only taken off the list. */
  async remove(item) {
    const { shown, attempt, forget } = this.#page;
    const chat = chats.known(item.id);
    const isOwner = item.role === "owner" && !(shown.refused && chat.id === shown.chat.id);
    if (!(await confirmed(isOwner ? deletion(item) : removal(item)))) return;
    const path = isOwner ? `/api/threads/${chat.id}` : `/api/threads/${chat.id}/members/${account.user?.id}`;
    const spares = chats.find(chat.id) ? ["thread_not_found", "forbidden"] : ["thread_not_found"];
    const asks = chat.created && (isOwner || shown.list.entries.has(chat.id));
    const done = !asks || (await attempt("remove the chat", "DELETE", path, { chat, spares })) !== undefined;
    if (done) forget(chat.id);
  }

  /** Keep a chat that was shared by a link on the account's list. */
  async join() {
    const { shown, change, attempt, follow } = this.#page;
    const { chat } = shown;
    change({ joining: true });
    const member = await attempt("add the chat", "POST", `/api/threads/${chat.id}/join`, { chat });
    change({ joining: false });
    if (!member) return;
    chats.forget(chat.id);
    if (shown.chat.id !== chat.id) return;
    change({ chat: { id: chat.id, title: chat.title, created: true }, role: member.role });
    follow();
  }
}

function called({ title }) {
  return title ? `“${title}”` : "this chat";
}

function deletion(item) {
  return { title: `Delete ${called(item)}?`, text: "It is deleted for everyone who has it. This can’t be undone.", yes: "Delete" };
}

function removal(item) {
  return { title: `Remove ${called(item)} from your list?`, text: "You can come back only by a link, or if somebody shares it with you again.", yes: "Remove" };
}

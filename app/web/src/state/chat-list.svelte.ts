// The chat list and its actions.

import { ApiError, EMPTY_THREAD_LIST, isRequestError, request } from "@khala/client";
import type { Invitation, Member, ThreadListEntry } from "@khala/client";
import type { ListPatch } from "../workers/stream.messages.ts";
import type { PageRequests } from "./page-requests.ts";
import type { OpenChat } from "./chat.svelte.ts";
import { keysOf } from "./keyring.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import { mergeChats, applyListPatch } from "./chat-list-items.ts";
import type { Account, ChatFolder, ChatListing, ChatListModel, ChatListItem, PageModel, ThreadKeys } from "./page-model.ts";
import { StoredChats } from "./stored-chats.ts";
import { NEW_CHAT } from "./strings.ts";
import { m } from "../i18n/messages.ts";

/** What the list needs of the page. */
export interface ChatListContext {
  readonly page: { readonly account: Account; readonly requests: PageRequests; readonly chat: OpenChat | null } & Pick<PageModel, "agents" | "toast">;
  /** Read wherever the browser's chats are read: makes them reactive, because they live in the storage. */
  keysChanged(): number;
  forget(id: string): void;
  goTo(known: KnownChat): void;
}

export class ChatList implements ChatListModel {
  readonly #keyring: Keyring;
  readonly #context: ChatListContext;
  entries: ReadonlyMap<string, ThreadListEntry> = $state.raw(EMPTY_THREAD_LIST.entries);
  revision: number | null = $state(null);
  hasMore = $state(false);
  invitations: readonly Invitation[] = $state.raw(EMPTY_THREAD_LIST.invitations);
  folders: readonly ChatFolder[] | null = $state.raw(null);

  constructor(keyring: Keyring, page: ChatListContext) {
    this.#keyring = keyring;
    this.#context = page;
  }

  /** The chats for which the person has switched off the agent of their folder. */
  readonly #withoutAgent = new StoredChats("khala.chats.without-agent");
  /** The chats with other members, who may only be invited yet. */
  readonly #withMembers = new StoredChats("khala.chats.with-members");

  /** How often the folders were asked for, and the last of these requests whose answer is shown. */
  #folderLoads = 0;
  #shownFolderLoad = 0;

  /** The new chat from which the person has changed to one of the other kind, and may change back. */
  #unused: { known: KnownChat; userId: string | undefined } | null = null;

  readonly #browserChats: readonly KnownChat[] = $derived.by(() => {
    this.#context.keysChanged();
    return this.#keyring.all();
  });

  readonly items: readonly ChatListItem[] = $derived.by(() => {
    const { account, chat } = this.#context.page;
    const userId = account.user?.id ?? null;
    return mergeChats(this.entries.values(), this.#browserChats, { userId, openId: chat?.id ?? null, openTitle: chat?.knownTitle ?? null, isOpenUnused: chat?.unused ?? false, hasMembers: (id) => this.#withMembers.has(id) });
  });

  get anonymousCount(): number {
    return this.#browserChats.filter(({ key, created, title }) => key && created && title).length;
  }

  /** Apply the changes of the account's list. */
  applyPatch(patch: ListPatch): void {
    const before = this.entries;
    this.entries = applyListPatch(before, patch);
    this.revision = patch.revision;
    this.hasMore = patch.hasMore;
    this.invitations = patch.invitations;
    const userId = this.#context.page.account.user?.id;
    if (userId && patch.entries.some(({ folder }) => folder)) this.#forgetFiled(userId);
    if (patch.whole && userId) void this.#fileAgain(userId);
    if (patch.whole || patch.entries.some(({ thread, folder }) => folder !== before.get(thread.id)?.folder)) void this.loadFolders();
  }

  async loadFolders(): Promise<void> {
    const { account, requests } = this.#context.page;
    const userId = account.user?.id;
    const load = ++this.#folderLoads;
    const found = userId ? await requests.quietly<{ items: ChatFolder[] }>("GET", "/api/me/folders") : null;
    if (!found || account.user?.id !== userId || load < this.#shownFolderLoad) return;
    [this.folders, this.#shownFolderLoad] = [found.items, load];
  }

  get folderAgent(): string | null {
    const { agents, chat } = this.#context.page;
    const name = chat && !this.#withoutAgent.has(chat.id) && this.#folderName(chat.id);
    const agent = this.folders?.find((folder) => folder.name === name)?.agent;
    // One that does not exist any more would fail each message.
    return agent !== undefined && (agents.items === null || agents.find(agent) !== null) ? agent : null;
  }

  stopFolderAgent(): void {
    const { chat } = this.#context.page;
    if (chat) this.#withoutAgent.add(chat.id);
  }

  noteMembers(id: string): void {
    this.#withMembers.add(id);
  }

  #folderName(id: string): string | null {
    return this.items.find((item) => item.id === id)?.folder ?? null;
  }

  /** Reset to an unknown list. */
  clear(): void {
    this.entries = EMPTY_THREAD_LIST.entries;
    this.revision = null;
    this.hasMore = false;
    this.invitations = EMPTY_THREAD_LIST.invitations;
    [this.folders, this.#shownFolderLoad] = [null, this.#folderLoads + 1];
    this.#unused = null;
  }

  /** The chat to start with: one that is not created on the server yet, or a new one. */
  newOrUncreated(): KnownChat {
    const userId = this.#context.page.account.user?.id;
    return this.#keyring.findUncreated(userId) ?? this.#keyring.add(userId);
  }

  add(isTemporary = false, folder: string | null = null): void {
    const { chat, account } = this.#context.page;
    const userId = account.user?.id;
    const isUnused = chat !== null && chat.refusal === null && chat.revision !== null && chat.unused;
    const isAlike = isUnused && chat.isTemporary === isTemporary;
    const current = isAlike ? this.#folderName(chat.id) : null;
    if (isAlike && current === folder) return;
    if (isAlike && current === null) return void this.organise(chat.id, { folder });
    const before = isUnused && !isAlike && folder === null ? this.#unusedOf(isTemporary, userId, chat.id) : null;
    this.#unused = isUnused && !isAlike ? { known: chat.known, userId } : null;
    const known = before ?? (isTemporary ? this.#keyring.addTemporary(userId) : this.newOrUncreated());
    this.#context.goTo(before || folder === (known.folder ?? null) ? known : this.#keyring.update(known, { folder }));
  }

  /** The new chat of this kind to which the person may change back from the open one; null if it has been used since. */
  #unusedOf(isTemporary: boolean, userId: string | undefined, openId: string): KnownChat | null {
    if (this.#unused === null || this.#unused.userId !== userId) return null;
    const { known } = this.#unused;
    if (Boolean(known.temporary) !== isTemporary || known.id === openId) return null;
    return this.items.some(({ id, title }) => id === known.id && title !== NEW_CHAT) ? null : known;
  }

  async rename(id: string, title: string): Promise<void> {
    const known = this.#keyring.known(id);
    const thread = await this.#context.page.requests.attempt(m.couldnt_rename_chat(), "PATCH", `/api/threads/${id}`, { keys: keysOf(known), body: { title } });
    if (thread && this.#keyring.find(id)) this.#keyring.update(known, { title, named: true });
  }

  /** Put a chat that the server has just created into the folder in which it was begun. Returns whether the list has it there. */
  async fileNew(id: string): Promise<boolean> {
    const folder = this.#keyring.find(id)?.folder;
    return !folder || ((await this.organise(id, { folder })) && Boolean(this.entries.get(id)?.folder));
  }

  /** Forget the browser's own folders of chats that the list has in theirs. */
  #forgetFiled(userId: string): void {
    for (const { id } of this.#keyring.unfiled(userId)) if (this.entries.get(id)?.folder) this.#keyring.removeKeys(id);
  }

  /** Put chats into their folders for which that failed when they were created. */
  async #fileAgain(userId: string): Promise<void> {
    for (const { id, folder } of this.#keyring.unfiled(userId)) {
      try {
        const isFiled = Boolean(this.entries.get(id)?.folder); // by the person, elsewhere
        if (!isFiled) await request("PATCH", `/api/threads/${id}/listing`, { body: { folder } });
      } catch (error) {
        if (!isRequestError(error)) throw error;
        const isRefused = error instanceof ApiError && error.status < 500 && error.status !== 429;
        if (!isRefused || this.#context.page.account.user?.id !== userId) return;
      }
      this.#keyring.removeKeys(id);
    }
  }

  async organise(id: string, changes: ChatListing): Promise<boolean> {
    const kept = this.#keyring.find(id);
    // A link has no list on the server; what its holder chooses stays in this browser.
    if (!kept || kept.key || kept.ownerId) {
      const keys = keysOf(kept ?? this.#keyring.known(id));
      const done = await this.#context.page.requests.attempt(m.couldnt_change_chat(), "PATCH", `/api/threads/${id}/listing`, { keys, body: changes });
      if (done === undefined) return false;
    }
    if (kept?.ownerId && kept.created && changes.folder !== undefined) this.#keyring.removeKeys(id);
    else if (kept) this.#keyring.update(kept, changes);
    return true;
  }

  async remove(id: string, undoSeconds: number): Promise<void> {
    const { account, requests: asking, chat } = this.#context.page;
    const known = this.#keyring.known(id);
    const item = this.items.find((one) => one.id === id);
    const isOwner = (item?.role ?? (chat?.id === id ? chat.role : null)) === "owner" && !(chat?.id === id && chat.refusal);
    const path = isOwner ? `/api/threads/${id}` : `/api/threads/${id}/members/${account.user?.id ?? ""}`;
    const spares = this.#keyring.find(id) ? ["thread_not_found", "forbidden"] : ["thread_not_found"];
    const asks = known.created && (isOwner || this.entries.has(id));
    const isDone = !asks || (await asking.attempt(m.couldnt_remove_chat(), "DELETE", path, { keys: keysOf(known), spares })) !== undefined;
    if (!isDone) return;
    const wasOpen = chat?.id === id;
    if (this.#unused?.known.id === id) this.#unused = null;
    this.#context.forget(id);
    if (!isOwner || !known.created || undoSeconds <= 0) return;
    this.#context.page.toast(m.chat_deleted(), { label: m.undo(), act: () => void this.#restore(known, wasOpen) }, undoSeconds);
  }

  /** Undo the deletion of a chat. */
  async #restore(known: KnownChat, opens: boolean): Promise<void> {
    const thread = await this.#context.page.requests.attempt(m.couldnt_restore_chat(), "POST", `/api/threads/${known.id}/restore`, { keys: keysOf(known) });
    if (!thread) return;
    if (known.key) this.#keyring.update(known, {});
    if (opens) this.#context.goTo(known);
  }

  forget(id: string): void {
    this.#context.forget(id);
  }

  keysOf(id: string): ThreadKeys {
    return keysOf(this.#keyring.known(id));
  }

  isStored(id: string): boolean {
    return this.#keyring.known(id).created;
  }

  async accept(id: string): Promise<void> {
    const { requests: asking, chat } = this.#context.page;
    if (chat?.id === id && chat.refusal === null) return chat.join();
    const member = await asking.attempt<Member>(m.couldnt_join_chat(), "POST", `/api/threads/${id}/join`);
    if (member) this.#context.goTo(this.#keyring.known(id));
  }

  async decline(id: string): Promise<void> {
    const { account, requests: asking, chat } = this.#context.page;
    const path = `/api/threads/${id}/members/${account.user?.id ?? ""}`;
    const spares = ["thread_not_found", "forbidden", "not_found"]; // the invitation was withdrawn meanwhile
    const isDone = (await asking.attempt(m.couldnt_decline_invitation(), "DELETE", path, { spares })) !== undefined;
    if (isDone && chat?.id === id && !this.#keyring.find(id)) this.#context.forget(id);
  }
}

// The model of the page: the open chat, the account, the connection, and the actions of the person.

import { ApiError, retryNow } from "@khala/client";
import type { RunOptions, ThreadListEntry } from "@khala/client";
import type { Batch } from "../workers/stream.messages.ts";
import { ACCOUNT_STORAGE_KEY } from "../browser/account-note.ts";
import { BrowserAccount } from "./account.svelte.ts";
import { isSharedAgent, parseAgentAddress } from "./agent-address.ts";
import { chatPath, parseChatAddress } from "./chat-address.ts";
import { openSettingsFromAddress } from "./settings-view.svelte.ts";
import { PageRequests } from "./page-requests.ts";
import { AccountTransitions } from "./account-transitions.ts";
import { OpenChat } from "./chat.svelte.ts";
import { Clock } from "./clock.svelte.ts";
import { PageReports } from "./page-reports.svelte.ts";
import { Keyring } from "./keyring.ts";
import type { KnownChat } from "./keyring.ts";
import { ChatList } from "./chat-list.svelte.ts";
import { ConnectionMonitor } from "./connection-monitor.svelte.ts";
import { DerivedTitles } from "./derived-titles.ts";
import { titleFrom } from "./title-text.ts";
import { guestName } from "./guest-name.svelte.ts";
import { runOptions } from "./run-options.ts";
import { SendQueue } from "./send-queue.svelte.ts";
import { StoredPreferences } from "./preferences.svelte.ts";
import { applyAppearance } from "./appearance.ts";
import { ChatModels } from "./chat-models.svelte.ts";
import { OwnPresence } from "./presence.ts";
import { ReadMarker } from "./read-marker.ts";
import { refusalMessage } from "./refusal-message.ts";
import { BrowserStorage } from "../browser/browser-storage.ts";
import { StreamClient } from "./stream-client.ts";
import type { StreamPort } from "./stream-client.ts";
import { AgentCatalog } from "./agents.svelte.ts";
import { errorMessage } from "./error-messages.ts";
import type { Connection, PageModel } from "./page-model.ts";
import { m } from "../i18n/messages.ts";

/** The start of the addresses to which a sign-in may return: a person decides there about the access of an app. */
const CONSENT_PATH = "/oauth/authorize?";

class BrowserPage extends PageReports implements PageModel {
  readonly #storage = new BrowserStorage(() => localStorage);
  readonly keyring = new Keyring(this.#storage, () => this.#keysChanged++);
  readonly preferences = new StoredPreferences(this.#storage);
  readonly chatModels = new ChatModels(this.#storage);
  readonly account = new BrowserAccount(this.#storage, this.keyring, {
    changeIdentity: (change) => this.stream.changeIdentity(change),
    onUserChanged: (before) => this.#transitions.handleUserChanged(before),
    onAccountLeft: () => this.#transitions.handleAccountLeft(),
    openThreadId: () => this.chat?.id ?? null,
    onClaimed: () => this.#transitions.reloadKeys(),
  });
  readonly sendQueue = new SendQueue(this.keyring, {
    userId: () => (this.account.reload(), this.account.user?.id), // another tab's change may not have arrived as an event yet
    say: (words) => this.toast(words),
  });
  readonly agents = new AgentCatalog({
    userId: () => this.account.user?.id ?? null,
    chosen: () => this.preferences.agent,
    onChosenGone: (agent) => this.#dropAgent(agent),
  });
  readonly requests = new PageRequests((words) => this.toast(words));
  readonly stream = new StreamClient((batch) => this.#applyBatch(batch));
  readonly chats = new ChatList(this.keyring, {
    page: this,
    keysChanged: () => this.#keysChanged,
    forget: (id) => this.#forget(id),
    goTo: (known) => this.#goTo(known),
  });
  readonly #transitions = new AccountTransitions(this, {
    reopen: (known) => this.#open(known, false),
    follow: (chat) => this.follow(chat),
    forget: (id) => this.#forget(id),
  });
  readonly #clock = new Clock();
  readonly #titles = new DerivedTitles((id) => this.listEntryOf(id));
  readonly #presence = new OwnPresence((state) => this.stream.post({ type: "present", state }));
  readonly #readMarker = new ReadMarker((id, revision) => void this.requests.quietly("PUT", `/api/threads/${id}/read`, { body: { revision } }));
  #keysChanged = $state(0);
  readonly #connection = new ConnectionMonitor();
  chat: OpenChat | null = $state.raw(null);
  dialog: PageModel["dialog"] = $state(null);
  signInProblem: string | null = $state(null);
  signInReturn: string | null = $state(null);
  claimableCount = $state(0);
  sharedAgent: string | null = $state(null);

  // Queries and settings

  get connection(): Connection {
    return this.chat?.refusal ? { phase: "closed" } : this.#connection.state;
  }

  get isOnline(): boolean {
    return this.#connection.isOnline;
  }

  get isInterrupted(): boolean {
    return this.#connection.isInterrupted;
  }

  get now(): number {
    return this.#clock.now;
  }

  options(): RunOptions {
    return runOptions(this.preferences, this.chat && this.chatModels.of(this.chat.id), this.chats.folderAgent);
  }

  #dropAgent(agent: string): void {
    this.preferences.agent = null;
    this.toast(isSharedAgent(agent) ? m.shared_agent_gone() : m.agent_gone({ agent }));
  }

  open(id: string): void {
    this.#goTo(this.keyring.known(id));
  }

  /** The network or the tab has come back. */
  wake(): void {
    this.#connection.isOnline = navigator.onLine;
    retryNow();
    this.stream.post({ type: "wake", isOnline: navigator.onLine });
    this.#updatePresenceAndRead();
  }

  answerClaimOffer(yes: boolean): Promise<void> {
    return this.#transitions.answerClaimOffer(yes);
  }

  listEntryOf(id: string): ThreadListEntry | null {
    return this.chats.entries.get(id) ?? null;
  }

  get hasList(): boolean {
    return this.chats.revision !== null;
  }

  setActivity(state: Record<string, unknown> | null): void {
    this.#presence.setActivity(state);
  }

  // Chats

  /** Open the chat of the address; without one, the chat that was open last, or a new one. */
  #openFromAddress(): void {
    const { id, shareKey } = parseChatAddress(location);
    this.#openSharedAgent();
    if (!id) return this.#openLast();
    if (!shareKey) return this.#open(this.keyring.known(id), false);
    history.replaceState(null, "", chatPath(id));
    this.#open(this.keyring.addShared(id, shareKey), false);
  }

  /** Show the agent whose link is in the address. Its key leaves the address, so that nobody sees or copies it by accident. */
  #openSharedAgent(): void {
    const link = parseAgentAddress(location);
    if (link === null) return;
    history.replaceState(null, "", location.pathname);
    [this.sharedAgent, this.dialog] = [link, "gallery"];
  }

  #openLast(): void {
    const { last } = this.keyring;
    const isOurs = last !== null && (this.account.user !== null || this.keyring.find(last) !== null);
    this.#openAtCurrentAddress(isOurs ? this.keyring.known(last) : this.chats.newOrUncreated(), true);
  }

  /** Open a chat in place of the one in the address. */
  #openAtCurrentAddress(known: KnownChat, implicit: boolean): void {
    history.replaceState(null, "", chatPath(known.id));
    this.#open(known, implicit);
  }

  #goTo(known: KnownChat): void {
    if (known.id === this.chat?.id && !this.chat.refusal) return;
    history.pushState(null, "", chatPath(known.id));
    this.#open(known, false);
  }

  #open(known: KnownChat, implicit: boolean): void {
    this.stream.leave();
    this.#presence.leave();
    if (this.dialog === "share" || this.dialog === "chat-settings") this.dialog = null;
    this.announcement = "";
    this.#connection.update({ phase: "connecting" });
    const chat = new OpenChat(known, implicit, this);
    this.chat = chat;
    if (known.created) this.follow(chat);
    else void this.#create(chat);
  }

  /** Follow the open chat with the keys that this browser has now. */
  follow(chat: OpenChat): void {
    if (this.chat === chat) this.stream.follow(chat.id, chat.keys, this.account.user?.id ?? null);
  }

  async #create(chat: OpenChat): Promise<void> {
    const wanted = () => this.chat === chat;
    try {
      const made = await this.requests.create(chat.known, { wanted, waits: (until) => this.#connection.update({ phase: "waiting", until }) });
      if (!made) return;
      const known = this.keyring.markCreated(chat.known, made, await this.chats.fileNew(chat.id));
      if (!wanted()) return;
      chat.known = known;
      chat.roleFromServer = "owner";
      this.follow(chat);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (wanted()) this.#refuse(chat, error.code, errorMessage(error));
    }
  }

  /** Remove what this browser has stored about the chat. If it is open, a new one opens. */
  #forget(id: string): void {
    this.keyring.forget(id);
    this.sendQueue.clear(id);
    this.stream.post({ type: "forget", threadId: id });
    if (id === this.chat?.id) this.#openAtCurrentAddress(this.chats.newOrUncreated(), false);
  }

  // Updates from the stream worker

  #applyBatch(batch: Batch): void {
    const { list, connection, refusal, signedOut } = batch;
    if (connection) this.#connection.update(connection);
    if (connection?.phase === "live") this.sendQueue.resendUnreached();
    if (list) this.#applyList(list);
    if (signedOut) this.account.handleSignedOut();
    const { chat } = this;
    if (!chat) return;
    const wasOpen = chat.revision !== null;
    chat.applyBatch(batch);
    if (refusal) this.#refuse(chat, refusal.code, refusal.message);
    else if (batch.patch) this.#handlePatch(chat, wasOpen, batch.wasReset === true);
    if (batch.isStale === false) void chat.loadRole();
    this.#updatePresenceAndRead();
  }

  #handlePatch(chat: OpenChat, wasOpen: boolean, wasReset: boolean): void {
    if (!wasOpen && !chat.isTemporary) this.keyring.setLast(chat.id);
    if (!wasOpen) void chat.loadRole();
    this.#updateTitle(chat, wasReset);
  }

  #applyList(list: NonNullable<Batch["list"]>): void {
    const id = this.chat?.id ?? "";
    const before = this.listEntryOf(id)?.role;
    this.chats.applyPatch(list);
    const after = this.listEntryOf(id)?.role;
    if (this.chat?.revision != null && before && after && before !== after) void this.chat.loadRole();
  }

  #refuse(chat: OpenChat, code: string, message: string): void {
    const wasOpen = chat.revision !== null;
    if (chat.implicit && !wasOpen && (code === "thread_not_found" || !chat.known.key)) {
      if (code === "thread_not_found") this.keyring.forget(chat.id);
      return this.#openAtCurrentAddress(this.chats.newOrUncreated(), true);
    }
    this.#presence.leave();
    if (this.dialog === "share" || this.dialog === "chat-settings") this.dialog = null;
    this.announcement = "";
    chat.refuse(code, refusalMessage(code, message, wasOpen || Boolean(chat.known.shareKey)));
  }

  /** Title an untitled chat by its first question, or by the plan with which it began. The title of an account's chat is saved, for its other browsers. */
  #updateTitle(chat: OpenChat, wasReset: boolean): void {
    const { known, thread, opening, unused } = chat;
    const title = thread?.title ?? (opening ? titleFrom(opening.text) : wasReset ? null : known.title);
    const named = Boolean(thread?.title);
    if (title === known.title && named === Boolean(known.named) && unused === Boolean(known.unused)) return;
    chat.known = this.keyring.find(chat.id) && !chat.isTemporary ? this.keyring.update(known, { title, named, unused }) : { ...known, title, named, unused };
    const isOurs = this.account.user && (opening?.authorId ?? thread?.ownerId) === this.account.user.id && !known.key && !chat.isTemporary;
    if (!named && title && isOurs) void this.#titles.propose(chat.id, title);
  }

  /** Update our presence and the read marker of the open chat. */
  #updatePresenceAndRead(): void {
    const { chat } = this;
    if (!chat) return;
    const isOpen = chat.revision !== null && chat.refusal === null && !chat.stale;
    const isSeen = isOpen && (this.account.user !== null || chat.thread?.visibility !== "private");
    this.#presence.enter(isSeen ? this.keyring.identityIn(chat.id).name : null, chat.isGuest ? guestName.name : "");
    const isNews = isOpen && !document.hidden && this.listEntryOf(chat.id)?.unread === true;
    this.#readMarker.update(chat.id, chat.revision ?? 0, isNews);
  }

  // Start

  /** Start the page once: restore the account, open the chat of the address, and listen to the browser's events. */
  async start(port: StreamPort): Promise<void> {
    this.stream.start(port);
    this.stream.post({ type: "start", url: `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/ws` });
    this.#connection.isOnline = navigator.onLine;
    this.#listen();
    const query = new URLSearchParams(location.search);
    const [problem, next] = [query.get("signin"), query.get("continue")];
    const hasSignedIn = query.has("signed-in");
    const cameBack = await this.account.restore(problem !== null, hasSignedIn);
    if (problem !== null || next !== null || hasSignedIn) history.replaceState(null, "", location.pathname);
    openSettingsFromAddress(this);
    this.#openFromAddress();
    if (this.account.user) this.stream.post({ type: "watch", isOn: true });
    if (cameBack) void this.#transitions.offerClaim();
    if (problem !== null) [this.signInProblem, this.dialog] = [problem, "signin"];
    if (next?.startsWith(CONSENT_PATH)) [this.signInReturn, this.dialog] = [next, "signin"];
    await Promise.all([this.sendQueue.restore(), this.preferences.agent === null ? null : this.agents.load()]);
  }

  #listen(): void {
    addEventListener("popstate", () => this.#openFromAddress());
    addEventListener("storage", ({ key }) => {
      this.#keysChanged++;
      this.preferences.reload();
      this.chatModels.reload();
      applyAppearance();
      if (key === ACCOUNT_STORAGE_KEY || key === null) this.account.reload();
    });
    for (const name of ["online", "offline"]) addEventListener(name, () => this.wake());
    addEventListener("pageshow", ({ persisted }) => persisted && this.wake());
    document.addEventListener("visibilitychange", () => {
      this.#presence.setHidden(document.hidden);
      if (!document.hidden) this.wake();
    });
  }
}

const own = new BrowserPage();

/** The model of the page. */
export const page: PageModel = own;

/** Start the page with its stream worker. */
export function start(port: StreamPort): Promise<void> {
  return own.start(port);
}

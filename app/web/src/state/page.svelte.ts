// The page: what it knows of the open chat, the account and the connection, and what the person does about it.

import type { Listed, RunOptions } from "../khala/frames.ts";
import { ApiError, retryNow } from "../khala/requests.ts";
import type { Batch } from "../workers/stream.messages.ts";
import { BrowserAccount, NOTE, nameOnce } from "./account.svelte.ts";
import { addressOf, addressed } from "./address.ts";
import { Asking } from "./asking.ts";
import { Belonging } from "./belonging.ts";
import { OpenChat } from "./chat.svelte.ts";
import { Clock } from "./clock.svelte.ts";
import { Feedback } from "./feedback.svelte.ts";
import { Keyring, titleFrom } from "./keyring.ts";
import type { KnownChat } from "./keyring.ts";
import { ChatList } from "./list.svelte.ts";
import { Line } from "./line.svelte.ts";
import { optionsOf } from "./options.ts";
import { Outgoings } from "./outgoings.svelte.ts";
import { KeptPreferences } from "./preferences.svelte.ts";
import { OwnPresence } from "./presence.ts";
import { ReadMarks } from "./reading.ts";
import { refusalWords } from "./refusal.ts";
import { Kept } from "./storage.ts";
import { Stream } from "./stream.ts";
import type { Port } from "./stream.ts";
import { ChosenTemplate } from "./template.svelte.ts";
import { errorMessage } from "./error-messages.ts";
import type { Connection, Page } from "./shape.ts";

class BrowserPage extends Feedback implements Page {
  readonly #kept = new Kept(() => localStorage);
  readonly keyring = new Keyring(this.#kept, () => this.#keysChanged++);
  readonly preferences = new KeptPreferences(this.#kept, () => void this.#loadTemplate());
  readonly account = new BrowserAccount(this.#kept, this.keyring, {
    as: (change) => this.stream.as(change),
    turned: (before) => this.#belonging.turned(before),
    leaves: () => this.#belonging.leaves(),
    openId: () => this.chat?.id ?? null,
    claimed: () => this.#belonging.takeKeys(),
  });
  readonly outgoings = new Outgoings(this.keyring, () => {
    this.account.reread(); // the other tab's word may be on its way to us still
    return this.account.user?.id;
  });
  readonly asking = new Asking((words) => this.toast(words));
  readonly stream = new Stream((batch) => this.#take(batch));
  readonly chats = new ChatList(this.keyring, {
    page: this,
    keysChanged: () => this.#keysChanged,
    forget: (id) => this.#forget(id),
    goTo: (known) => this.#goTo(known),
  });
  readonly #belonging = new Belonging(this, {
    reopen: (known) => this.#open(known, false),
    follow: (chat) => this.follow(chat),
    forget: (id) => this.#forget(id),
  });
  readonly #clock = new Clock();
  readonly #presence = new OwnPresence((state) => this.stream.say({ type: "present", state }));
  readonly #reading = new ReadMarks((id, revision) => void this.asking.quietly("PUT", `/api/threads/${id}/read`, { body: { revision } }));
  #keysChanged = $state(0);
  readonly #line = new Line();
  readonly #template = new ChosenTemplate();
  chat: OpenChat | null = $state.raw(null);
  dialog: Page["dialog"] = $state(null);
  problem: string | null = $state(null);
  keepable = $state(0);

  // What is asked of it

  get connection(): Connection {
    return this.chat?.refusal ? { phase: "closed" } : this.#line.standing;
  }

  get isOnline(): boolean {
    return this.#line.isOnline;
  }

  get isCut(): boolean {
    return this.#line.isCut;
  }

  get now(): number {
    return this.#clock.now;
  }

  options(): RunOptions {
    return optionsOf(this.preferences, this.#template.of(this.preferences.agent));
  }

  async #loadTemplate(): Promise<void> {
    const isLoaded = await this.#template.load(this.preferences.agent);
    if (!isLoaded) this.toast("Couldn’t load the agent. Messages are sent without it until you reload the page.");
  }

  open(id: string): void {
    this.#goTo(this.keyring.known(id));
  }

  /** The network or the tab has come back. */
  wake(): void {
    this.#line.isOnline = navigator.onLine;
    retryNow();
    this.stream.say({ type: "wake", isOnline: navigator.onLine });
    this.#consider();
  }

  keep(yes: boolean): Promise<void> {
    return this.#belonging.keep(yes);
  }

  listedAs(id: string): Listed | null {
    return this.chats.entries.get(id) ?? null;
  }

  get isListed(): boolean {
    return this.chats.revision !== null;
  }

  doing(state: Record<string, unknown> | null): void {
    this.#presence.do(state);
  }

  // Chats

  /** Open the chat that the address names; a bare one leads to the chat that was open last, or to a new one. */
  #openFromAddress(): void {
    const { id, shareKey } = addressed(location);
    if (!id) return this.#openLast();
    if (!shareKey) return this.#open(this.keyring.known(id), false);
    history.replaceState(null, "", addressOf(id));
    this.#open(this.keyring.addShared(id, shareKey), false);
  }

  #openLast(): void {
    const { last } = this.keyring;
    const isOurs = last !== null && (this.account.user !== null || this.keyring.find(last) !== null);
    this.#openInstead(isOurs ? this.keyring.known(last) : this.chats.fresh(), true);
  }

  /** Open it in place of what the address named. */
  #openInstead(known: KnownChat, implicit: boolean): void {
    history.replaceState(null, "", addressOf(known.id));
    this.#open(known, implicit);
  }

  #goTo(known: KnownChat): void {
    if (known.id === this.chat?.id && !this.chat.refusal) return;
    history.pushState(null, "", addressOf(known.id));
    this.#open(known, false);
  }

  #open(known: KnownChat, implicit: boolean): void {
    this.stream.leave();
    this.#presence.leave();
    if (this.dialog === "share") this.dialog = null;
    this.announced = "";
    this.#line.take({ phase: "connecting" });
    const chat = new OpenChat(known, implicit, this);
    this.chat = chat;
    if (known.created) this.follow(chat);
    else void this.#create(chat);
  }

  /** Follow the open chat by the keys that this browser has to it now. */
  follow(chat: OpenChat): void {
    if (this.chat === chat) this.stream.follow(chat.id, chat.keys, this.account.user?.id ?? null);
  }

  async #create(chat: OpenChat): Promise<void> {
    const wanted = () => this.chat === chat;
    try {
      const made = await this.asking.create(chat.known, { wanted, waits: (until) => this.#line.take({ phase: "waiting", until }) });
      if (!made) return;
      const known = this.keyring.settleMade(chat.known, made);
      if (!wanted()) return;
      chat.known = known;
      chat.told = "owner";
      this.follow(chat);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (wanted()) this.#refuse(chat, error.code, errorMessage(error));
    }
  }

  /** Forget what this browser knows of the chat; if it is open, another is. */
  #forget(id: string): void {
    this.keyring.forget(id);
    this.outgoings.clear(id);
    this.stream.say({ type: "forget", threadId: id });
    if (id === this.chat?.id) this.#openInstead(this.chats.fresh(), false);
  }

  // What the worker tells

  #take(batch: Batch): void {
    const { list, connection, refusal, signedOut } = batch;
    if (connection) this.#line.take(connection);
    if (list) this.#takeList(list);
    if (signedOut) this.account.lose();
    const { chat } = this;
    if (!chat) return;
    const wasOpen = chat.revision !== null;
    chat.take(batch);
    if (refusal) this.#refuse(chat, refusal.code, refusal.message);
    else if (batch.patch) this.#took(chat, wasOpen, batch.wasReset === true);
    if (batch.isStale === false) void chat.learnRole();
    this.#consider();
  }

  #took(chat: OpenChat, wasOpen: boolean, wasReset: boolean): void {
    if (!wasOpen) {
      this.keyring.open(chat.id);
      void chat.learnRole();
    }
    this.#name(chat, wasReset);
  }

  #takeList(list: NonNullable<Batch["list"]>): void {
    const id = this.chat?.id ?? "";
    const before = this.listedAs(id)?.role;
    this.chats.take(list);
    const after = this.listedAs(id)?.role;
    if (this.chat?.revision != null && before && after && before !== after) void this.chat.learnRole();
  }

  #refuse(chat: OpenChat, code: string, message: string): void {
    const wasOpen = chat.revision !== null;
    if (chat.implicit && !wasOpen && (code === "thread_not_found" || !chat.known.key)) {
      if (code === "thread_not_found") this.keyring.forget(chat.id);
      return this.#openInstead(this.chats.fresh(), true);
    }
    this.#presence.leave();
    if (this.dialog === "share") this.dialog = null;
    this.announced = "";
    chat.refuse(code, refusalWords(code, message, wasOpen || Boolean(chat.known.shareKey)));
  }

  /** A chat without a name is called by what was said first; an account's chat is given that name, for its other browsers. */
  #name(chat: OpenChat, wasReset: boolean): void {
    const { known, thread, opening } = chat;
    const guess = opening ? titleFrom(opening.text) : wasReset ? null : known.title;
    const title = thread?.title ?? guess;
    const named = Boolean(thread?.title);
    if (title === known.title && named === Boolean(known.named)) return;
    chat.known = this.keyring.find(chat.id) ? this.keyring.update(known, { title, named }) : { ...known, title, named };
    const isOurs = this.account.user && opening?.head.authorId === this.account.user.id && !known.key;
    if (!named && title && isOurs) void nameOnce(chat.id, title);
  }

  /** See who needs to know that we are here, and that we have read. */
  #consider(): void {
    const { chat } = this;
    if (!chat) return;
    const isOpen = chat.revision !== null && chat.refusal === null && !chat.stale;
    const isSeen = isOpen && (this.account.user !== null || chat.thread?.visibility !== "private");
    this.#presence.enter(isSeen ? this.keyring.own(chat.id).name : null);
    const isNews = isOpen && !document.hidden && this.listedAs(chat.id)?.unread === true;
    this.#reading.consider(chat.id, chat.revision ?? 0, isNews);
  }

  // The start

  /** Begin: see who is signed in, open what the address names, and listen to the browser. Once. */
  async start(port: Port): Promise<void> {
    this.stream.start(port);
    this.stream.say({ type: "start", url: `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/ws` });
    this.#line.isOnline = navigator.onLine;
    this.#listen();
    const problem = new URLSearchParams(location.search).get("signin");
    const cameBack = await this.account.begin(problem !== null);
    if (problem !== null) history.replaceState(null, "", location.pathname);
    this.#openFromAddress();
    if (this.account.user) this.stream.say({ type: "watch", isOn: true });
    if (cameBack) void this.#belonging.offer();
    if (problem !== null) [this.problem, this.dialog] = [problem, "signin"];
    await Promise.all([this.outgoings.restore(), this.#loadTemplate()]);
  }

  #listen(): void {
    addEventListener("popstate", () => this.#openFromAddress());
    addEventListener("storage", ({ key }) => {
      this.#keysChanged++;
      this.preferences.reread();
      if (key === NOTE || key === null) this.account.reread();
    });
    for (const name of ["online", "offline"]) addEventListener(name, () => this.wake());
    addEventListener("pageshow", ({ persisted }) => persisted && this.wake());
    document.addEventListener("visibilitychange", () => {
      this.#presence.hide(document.hidden);
      if (!document.hidden) this.wake();
    });
  }
}

const own = new BrowserPage();

/** The one state of the page. */
export const page: Page = own;

/** Begin, with the stream worker. */
export function start(port: Port): Promise<void> {
  return own.start(port);
}

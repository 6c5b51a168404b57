// The open chat: what the page knows of it, and what the person does with it.

import type { BlobRef, Listed, Member, Message, Older, Role, RunOptions, Sent, Thread } from "../khala/frames.ts";
import { newId } from "../khala/ids.ts";
import { request, withRetry, upload } from "../khala/requests.ts";
import type { Batch } from "../workers/stream.messages.ts";
import type { Asking } from "./asking.ts";
import { keysOf } from "./keyring.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import { others } from "./presence.ts";
import type { Outgoings } from "./outgoings.svelte.ts";
import type { Stream } from "./stream.ts";
import { ThreadView } from "./thread.svelte.ts";
import { OutgoingMessage } from "./views.svelte.ts";
import type { Head } from "./views.svelte.ts";
import type { ChatView, Keys, MessageView, Page, Participant } from "./shape.ts";
import { NEW_CHAT } from "./strings.ts";

/** What an open chat has of the page. */
export interface ChatPage extends Pick<Page, "options" | "toast" | "account"> {
  readonly keyring: Keyring;
  readonly outgoings: Outgoings;
  readonly stream: Stream;
  readonly asking: Asking;
  /** Whether the connection is lost for so long that nothing more may come. */
  readonly isCut: boolean;
  readonly isOnline: boolean;
  /** What the account's list has of this chat; `isListed` once it was heard. */
  listedAs(id: string): Listed | null;
  readonly isListed: boolean;
  /** The chat's keys have changed: follow it by those that there are now. */
  follow(chat: OpenChat): void;
  doing(state: Record<string, unknown> | null): void;
}

export class OpenChat implements ChatView {
  readonly id: string;
  readonly #page: ChatPage;
  #view: ThreadView = $state.raw(this.#empty());
  known: KnownChat;
  /** What the server says that we may do here. */
  told: Role | null = $state(null);
  refusal: ChatView["refusal"] = $state.raw(null);
  stale = $state(false);
  joining = $state(false);
  /** Whether it was opened because it was open last, and nobody asked for it by name. */
  readonly implicit: boolean;
  lag = $state(0);
  more = $state(0);
  #present: readonly Participant[] = $state.raw([]);
  #ownAuthors: readonly string[];
  #isLoadingEarlier = false;

  constructor(known: KnownChat, implicit: boolean, page: ChatPage) {
    this.id = known.id;
    this.known = $state.raw(known);
    this.implicit = implicit;
    this.#page = page;
    this.#ownAuthors = $state.raw(page.keyring.own(known.id).authors);
  }

  #empty(): ThreadView {
    return new ThreadView({ isCut: () => this.#page.isCut || this.stale, authorOf: (head) => this.#authorOf(head) });
  }

  /** Take what the worker tells of this chat. */
  take({ patch, isStale, wasReset, lag, present }: Batch): void {
    if (wasReset) this.#page.outgoings.clear(this.id);
    if (lag !== undefined) this.lag = lag;
    if (isStale !== undefined) this.stale = isStale;
    if (present) {
      this.#present = present.participants;
      this.more = present.more;
    }
    if (!patch) return;
    const heads = patch.messages.map(({ head }) => head);
    if (this.#page.keyring.noteAuthors(this.id, heads)) this.#ownAuthors = this.#page.keyring.own(this.id).authors;
    for (const { id } of this.#page.outgoings.of(this.id)) this.#view.await(id);
    this.#view.take(patch);
    this.#page.outgoings.settle(this.id, (id) => this.#view.find(id)?.head, patch.revision);
  }

  /** The server will not let us follow it; nothing of it stays in sight, unless only this page is too old for it. */
  refuse(code: string, message: string): void {
    if (code !== "protocol") this.#view = this.#empty();
    this.#present = [];
    this.stale = false;
    this.refusal = { code, message, forgettable: this.#page.keyring.find(this.id) !== null };
  }

  get keys(): Keys {
    return keysOf(this.known);
  }

  get thread(): Thread | null {
    return this.#view.thread;
  }

  get revision(): number | null {
    return this.#view.revision;
  }

  /** What the chat is called: by its own name, or by what was said first. Empty where it has none. */
  get named(): string {
    return this.thread?.title ?? this.known.title ?? this.#page.listedAs(this.id)?.thread.title ?? "";
  }

  get title(): string {
    return this.named || NEW_CHAT;
  }

  get role(): Role | null {
    if (this.known.key || this.known.ownerId) return "owner";
    return this.told ?? this.#page.listedAs(this.id)?.role ?? (this.#isOurs ? "owner" : null);
  }

  get #isOurs(): boolean {
    const ownerId = this.thread?.ownerId;
    return ownerId !== undefined && ownerId === this.#page.account.user?.id;
  }

  get mayWrite(): boolean {
    return this.role === "owner" || this.role === "editor";
  }

  get shared(): boolean {
    return this.#view.authorCount > 1 || (this.thread !== null && this.thread.visibility !== "private") || this.role !== "owner";
  }

  #authorOf({ role, authorId, authorName }: Head): string | null {
    if (role !== "user" || !authorId || !this.shared) return null;
    const isOurs = this.#ownAuthors.includes(authorId) || authorId === this.#page.account.user?.id;
    return isOurs ? null : (authorName ?? "Guest");
  }

  readonly messages: readonly MessageView[] = $derived.by(() => this.#messages());

  #messages(): readonly MessageView[] {
    if (this.refusal !== null) return [];
    const waiting = this.#page.outgoings.of(this.id).filter(({ id }) => this.#view.find(id) === undefined);
    const parent = waiting.findLast(({ parentId }) => parentId !== undefined)?.parentId;
    const shown = this.#view.shown;
    const at = parent == null ? -1 : shown.findIndex(({ id }) => id === parent);
    const pending = waiting.map((one) => new OutgoingMessage(one, this.#page.isOnline));
    return [...(parent === null ? [] : at < 0 ? shown : shown.slice(0, at + 1)), ...pending];
  }

  get ids(): readonly string[] {
    return this.#view.all.map(({ id }) => id);
  }

  get hasMore(): boolean {
    return this.refusal === null && this.#view.hasMore;
  }

  get loading(): boolean {
    return this.revision === null && this.refusal === null;
  }

  readonly participants: readonly Participant[] = $derived.by(() =>
    this.refusal === null ? others(this.#present, this.#page.keyring.own(this.id).name, this.#page.account.user?.id ?? null) : [],
  );

  get active(): MessageView | null {
    return this.refusal === null ? this.#view.active : null;
  }

  /** The first question, if what is known begins at the beginning. */
  get opening(): MessageView | null {
    if (this.#view.hasMore) return null;
    const first = this.#view.all.find(({ role }) => role === "user");
    return first ? (this.#view.find(first.id) ?? null) : null;
  }

  get #waiting() {
    return this.#page.outgoings.of(this.id);
  }

  get asked(): boolean {
    return this.#view.all.some(({ role }) => role === "user") || this.#waiting.length > 0;
  }

  get busy(): boolean {
    return this.active !== null || this.#waiting.some(({ state }) => state.phase !== "failed" && (state.phase !== "queued" || this.#page.isOnline));
  }

  get stoppable(): boolean {
    return this.mayWrite && this.#runId() !== null;
  }

  #runId(): string | null {
    return this.active?.head.runId ?? this.#page.outgoings.runOf(this.id);
  }

  get joinable(): boolean {
    const { shareKey, key } = this.known;
    const isOurs = this.#page.listedAs(this.id) !== null || !this.#page.isListed;
    return Boolean(shareKey && !key && this.#page.account.user && this.refusal === null && this.thread?.ownerId && !isOurs);
  }

  send(text: string, files: readonly BlobRef[] = [], { parentId, options = this.#page.options() }: { parentId?: string | null; options?: RunOptions } = {}): void {
    const { keyring, outgoings } = this.#page;
    if (keyring.find(this.id)) this.known = keyring.update(this.known, { usedAt: Date.now() });
    const id = newId();
    const parent = parentId === undefined ? this.#view.parent : parentId;
    keyring.noteSent(this.id, id);
    const entry = { id, threadId: this.id, keys: this.keys, text, attachments: files, options, ...(parent !== undefined && { parentId: parent }) };
    if (!outgoings.add(entry)) this.#page.toast("Too many unsent messages. Wait until some are sent.");
  }

  resend(id: string): void {
    this.#page.outgoings.resend(id);
  }

  takeBack(id: string): { text: string; files: readonly BlobRef[] } | null {
    return this.#page.outgoings.takeBack(id);
  }

  async regenerate(answerId: string): Promise<void> {
    const answer = this.#view.find(answerId);
    const messageId = answer?.head.parentId;
    if (!messageId || this.busy) return;
    const body = { messageId, answerId: newId(), options: this.#page.options() };
    this.#view.await(body.answerId);
    await this.#attempt<Sent>("regenerate the answer", "POST", "/regenerate", body);
  }

  edit(questionId: string, text: string): void {
    const question = this.#view.find(questionId);
    if (question) this.send(text, question.files, { parentId: question.head.parentId ?? null });
  }

  choose(messageId: string): void {
    if (this.#view.find(messageId) === undefined) return;
    this.#view.choose(messageId);
    const end = this.#view.end;
    if (this.mayWrite && end !== null && !this.busy) void this.#page.asking.quietly("PATCH", this.#path(""), { keys: this.keys, body: { activeLeaf: end } });
  }

  async stop(): Promise<void> {
    const runId = this.#runId();
    if (runId === null) return;
    await this.#page.asking.attempt("stop the answer", "POST", `/api/runs/${runId}/cancel`, { keys: this.keys, body: {} });
  }

  async loadEarlier(): Promise<void> {
    const oldest = this.#view.all[0];
    if (!oldest || this.#isLoadingEarlier) return;
    this.#isLoadingEarlier = true;
    const page = await this.#attempt<Older<Message>>("load earlier messages", "GET", `/messages?before=${oldest.id}&limit=50`);
    this.#isLoadingEarlier = false;
    if (page) this.#page.stream.say({ type: "earlier", threadId: this.id, page });
  }

  async reset(): Promise<void> {
    await this.#attempt("reset the conversation", "POST", "/reset");
  }

  async join(): Promise<void> {
    this.joining = true;
    const member = await this.#attempt<Member>("add the chat", "POST", "/join");
    this.joining = false;
    if (!member) return;
    this.#page.keyring.drop(this.id);
    this.known = { id: this.id, title: this.known.title, created: true };
    this.told = member.role;
    this.#page.follow(this);
  }

  announce(state: Record<string, unknown> | null): void {
    this.#page.doing(state);
  }

  call<T>(method: string, path: string, body?: unknown): Promise<T> {
    return withRetry(() => request<T>(method, path, { keys: this.keys, ...(body !== undefined && { body }) }), { maxAttempts: 5 });
  }

  upload(file: File, { progress, signal }: { progress?: (share: number) => void; signal?: AbortSignal }): Promise<BlobRef> {
    const path = this.#path(`/blobs?name=${encodeURIComponent(file.name)}`);
    return upload(path, file, { keys: this.keys, ...(progress && { onProgress: progress }), ...(signal && { signal }) });
  }

  async members(): Promise<readonly Member[]> {
    const { items } = await this.call<{ items: Member[] }>("GET", this.#path("/members"));
    return items;
  }

  /** Ask what we may do here, where that is not plain from our own key. */
  async learnRole(): Promise<void> {
    if (this.known.key) return;
    const found = await this.#page.asking.quietly<{ role: Role }>("GET", this.#path("/access"), { keys: this.keys });
    if (found) this.told = found.role;
  }

  #path(rest: string): string {
    return `/api/threads/${this.id}${rest}`;
  }

  #attempt<T>(what: string, method: string, rest: string, body?: unknown): Promise<T | undefined> {
    return this.#page.asking.attempt<T>(what, method, this.#path(rest), { keys: this.keys, ...(body !== undefined && { body }) });
  }
}


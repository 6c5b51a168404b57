// The open chat: its state and its actions.

import { downloadBlob, newId, request, upload, withRetry } from "@khala/client";
import type { BlobRef, Member, Message, OlderMessages, PlanState, Role, RunOptions, SendResult, Thread, ThreadListEntry } from "@khala/client";
import type { Batch } from "../workers/stream.messages.ts";
import type { PageRequests } from "./page-requests.ts";
import { isGuestId, keysOf } from "./keyring.ts";
import type { Keyring, KnownChat } from "./keyring.ts";
import { otherParticipants } from "./presence.ts";
import type { SendQueue } from "./send-queue.svelte.ts";
import type { StreamClient } from "./stream-client.ts";
import { ReactiveThread } from "./thread.svelte.ts";
import { OutgoingMessage } from "./message-views.svelte.ts";
import type { MessageHead } from "./message-views.svelte.ts";
import type { ChatView, ThreadKeys, MessageView, PageModel, Participant } from "./page-model.ts";
import { guestName } from "./guest-name.svelte.ts";
import { openingOf } from "./title-text.ts";
import type { ChatOpening } from "./title-text.ts";
import { NEW_CHAT } from "./strings.ts";
import { m } from "../i18n/messages.ts";

/** What an open chat needs of the page. */
export interface ChatContext extends Pick<PageModel, "options" | "toast" | "account"> {
  readonly keyring: Keyring;
  readonly sendQueue: SendQueue;
  readonly stream: StreamClient;
  readonly requests: PageRequests;
  /** Whether the connection has been lost for so long that answers count as interrupted. */
  readonly isInterrupted: boolean;
  readonly isOnline: boolean;
  /** The account's list entry of this chat, if any. `hasList` says whether the list is loaded. */
  listEntryOf(id: string): ThreadListEntry | null;
  readonly hasList: boolean;
  /** Follow the chat again with its current keys. */
  follow(chat: OpenChat): void;
  setActivity(state: Record<string, unknown> | null): void;
}

export class OpenChat implements ChatView {
  readonly id: string;
  readonly #context: ChatContext;
  #view: ReactiveThread = $state.raw(this.#emptyView());
  known: KnownChat;
  /** Our role in this chat according to the server. */
  roleFromServer: Role | null = $state(null);
  refusal: ChatView["refusal"] = $state.raw(null);
  stale = $state(false);
  joining = $state(false);
  /** Whether the page opened it by itself, as the chat that was open last. */
  readonly implicit: boolean;
  clockLagMs = $state(0);
  moreParticipants = $state(0);
  #participants: readonly Participant[] = $state.raw([]);
  #ownAuthors: readonly string[];
  #isLoadingEarlier = false;

  constructor(known: KnownChat, implicit: boolean, page: ChatContext) {
    this.id = known.id;
    this.known = $state.raw(known);
    this.implicit = implicit;
    this.#context = page;
    this.#ownAuthors = $state.raw(page.keyring.identityIn(known.id).authors);
  }

  #emptyView(): ReactiveThread {
    return new ReactiveThread({ isInterrupted: () => this.#context.isInterrupted || this.stale, authorOf: (head) => this.#authorOf(head) });
  }

  /** Apply a batch of the stream worker. */
  applyBatch({ patch, isStale, wasReset, lag, present }: Batch): void {
    if (wasReset) this.#context.sendQueue.clear(this.id);
    if (lag !== undefined) this.clockLagMs = lag;
    if (isStale !== undefined) this.stale = isStale;
    if (present) {
      this.#participants = present.participants;
      this.moreParticipants = present.more;
    }
    if (!patch) return;
    const heads = patch.messages.map(({ head }) => head);
    if (this.#context.keyring.recordAuthors(this.id, heads)) this.#ownAuthors = this.#context.keyring.identityIn(this.id).authors;
    for (const { id } of this.#context.sendQueue.entriesOf(this.id)) this.#view.awaitMessage(id);
    this.#view.applyPatch(patch);
    this.#context.sendQueue.removeDelivered(this.id, (id) => this.#view.find(id)?.head, patch.revision);
  }

  /** The server refuses access. The content is removed, unless the page is only too old for the server's protocol. */
  refuse(code: string, message: string): void {
    if (code !== "protocol") this.#view = this.#emptyView();
    this.#participants = [];
    this.stale = false;
    this.refusal = { code, message, forgettable: this.#context.keyring.find(this.id) !== null };
  }

  get keys(): ThreadKeys {
    return keysOf(this.known);
  }

  get thread(): Thread | null {
    return this.#view.thread;
  }

  get revision(): number | null {
    return this.#view.revision;
  }

  /** The title of the chat, or one derived from its first message; empty if it has none. */
  get knownTitle(): string {
    return this.thread?.title ?? this.known.title ?? this.#context.listEntryOf(this.id)?.thread.title ?? "";
  }

  get title(): string {
    return this.knownTitle || (this.refusal ? m.chat_unavailable() : NEW_CHAT);
  }

  get isTemporary(): boolean {
    return this.known.temporary === true || this.thread?.expiresAt !== undefined;
  }

  get role(): Role | null {
    if (this.known.key || this.known.ownerId) return "owner";
    return this.roleFromServer ?? this.#context.listEntryOf(this.id)?.role ?? (this.#isOurs ? "owner" : null);
  }

  get #isOurs(): boolean {
    const ownerId = this.thread?.ownerId;
    return ownerId !== undefined && ownerId === this.#context.account.user?.id;
  }

  get mayWrite(): boolean {
    return this.role === "owner" || this.role === "editor";
  }

  get isGuest(): boolean {
    return this.shared && this.mayWrite && this.refusal === null && this.#context.account.user === null;
  }

  get shared(): boolean {
    return this.#view.authorCount > 1 || (this.thread !== null && this.thread.visibility !== "private") || this.role !== "owner";
  }

  #authorOf({ role, authorId, authorName }: MessageHead): string | null {
    if (role === "assistant") return authorName ?? null;
    if (role !== "user" || !authorId || !this.shared) return null;
    const isOurs = this.#ownAuthors.includes(authorId) || authorId === this.#context.account.user?.id;
    if (isOurs) return null;
    return authorName && isGuestId(authorId) ? m.guest_named({ name: authorName }) : (authorName ?? m.guest());
  }

  readonly messages: readonly MessageView[] = $derived.by(() => this.#visibleMessages());

  #visibleMessages(): readonly MessageView[] {
    if (this.refusal !== null) return [];
    const waiting = this.#context.sendQueue.entriesOf(this.id).filter(({ id }) => this.#view.find(id) === undefined);
    const parent = waiting.findLast(({ parentId }) => parentId !== undefined)?.parentId;
    const shown = this.#view.shown;
    const at = parent == null ? -1 : shown.findIndex(({ id }) => id === parent);
    const pending = waiting.map((one) => new OutgoingMessage(one, this.#context.isOnline));
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
    this.refusal === null ? otherParticipants(this.#participants, this.#context.keyring.identityIn(this.id).name, this.#context.account.user?.id ?? null) : [],
  );

  get activeAnswer(): MessageView | null {
    return this.refusal === null ? this.#view.activeAnswer : null;
  }

  /** What the chat began with, if the thread is loaded from its beginning. */
  get opening(): ChatOpening | null {
    if (this.#view.hasMore) return null;
    const first = this.#view.all.find(({ role }) => role === "user");
    return openingOf(first ? (this.#view.find(first.id) ?? null) : null, this.plans);
  }

  get plans(): readonly PlanState[] {
    return this.refusal === null ? this.#view.plans : [];
  }

  get stepAnswers(): readonly MessageView[] {
    return this.refusal === null ? this.#view.stepAnswers : [];
  }

  get #queued() {
    return this.#context.sendQueue.entriesOf(this.id);
  }

  get hasQuestions(): boolean {
    return this.#view.all.some(({ role }) => role === "user") || this.#queued.length > 0;
  }

  /** Whether nothing has happened in it yet. */
  get unused(): boolean {
    return !this.hasQuestions && !this.shared && this.plans.length === 0;
  }

  get busy(): boolean {
    return this.activeAnswer !== null || this.#queued.some(({ state }) => state.phase !== "failed" && (state.phase !== "queued" || this.#context.isOnline));
  }

  get stoppable(): boolean {
    return this.mayWrite && this.#runId() !== null;
  }

  #runId(): string | null {
    return this.activeAnswer?.head.runId ?? this.#context.sendQueue.startedRunOf(this.id);
  }

  get joinable(): boolean {
    const { shareKey, key } = this.known;
    const isOurs = this.#context.listEntryOf(this.id) !== null || !this.#context.hasList;
    return Boolean(shareKey && !key && this.#context.account.user && this.refusal === null && this.thread?.ownerId && !isOurs);
  }

  send(text: string, files: readonly BlobRef[] = [], { parentId, options = this.#context.options() }: { parentId?: string | null; options?: RunOptions } = {}): void {
    const { keyring, sendQueue: outgoings } = this.#context;
    if (keyring.find(this.id)) this.known = keyring.update(this.known, { usedAt: Date.now() });
    const id = newId();
    const parent = parentId === undefined ? this.#view.parent : parentId;
    keyring.recordSent(this.id, id);
    // An answer may be active that this page does not know of, for example of another tab.
    const entry = { id, threadId: this.id, keys: this.keys, text, attachments: files, options: { ifBusy: "queue" as const, ...options }, ...(parent !== undefined && { parentId: parent }), ...(this.isGuest && guestName.name && { authorName: guestName.name }) };
    if (!outgoings.add(entry)) this.#context.toast(m.too_many_unsent_messages_wait_until_some());
  }

  resend(id: string): void {
    this.#context.sendQueue.resend(id);
  }

  withdraw(id: string): { text: string; files: readonly BlobRef[] } | null {
    const answer = this.#view.find(id);
    if (answer === undefined) return this.#context.sendQueue.withdraw(id);
    const question = this.#view.find(answer.head.parentId ?? "");
    this.#view.withdraw(id);
    void this.stop(id);
    return question?.author === null && answer.versions.length === 1 ? { text: question.text, files: question.files } : null;
  }

  async regenerate(answerId: string, model?: string): Promise<void> {
    const answer = this.#view.find(answerId);
    const messageId = answer?.head.parentId;
    if (!messageId || this.busy) return;
    const body = { messageId, answerId: newId(), options: { ...this.#context.options(), ...(model !== undefined && { model }) } };
    this.#view.awaitMessage(body.answerId);
    await this.#attempt<SendResult>(m.couldnt_regenerate(), "POST", "/regenerate", body);
  }

  edit(questionId: string, text: string): void {
    const question = this.#view.find(questionId);
    if (question) this.send(text, question.files, { parentId: question.head.parentId ?? null });
  }

  showBranch(messageId: string): void {
    if (this.#view.find(messageId) === undefined) return;
    this.#view.showBranch(messageId);
    const end = this.#view.end;
    if (this.mayWrite && end !== null && !this.busy) void this.#context.requests.quietly("PATCH", this.#path(""), { keys: this.keys, body: { activeLeaf: end } });
  }

  async stop(answerId?: string): Promise<void> {
    const runId = answerId === undefined ? this.#runId() : (this.#view.find(answerId)?.head.runId ?? null);
    if (runId === null) return;
    await this.#context.requests.attempt(m.couldnt_stop(), "POST", `/api/runs/${runId}/cancel`, { keys: this.keys, body: {} });
  }

  async loadEarlier(): Promise<void> {
    const oldest = this.#view.all[0];
    if (!oldest || this.#isLoadingEarlier) return;
    this.#isLoadingEarlier = true;
    const page = await this.#attempt<OlderMessages<Message>>(m.couldnt_load_earlier(), "GET", `/messages?before=${oldest.id}&limit=50`);
    this.#isLoadingEarlier = false;
    if (page) this.#context.stream.post({ type: "earlier", threadId: this.id, page });
  }

  async reset(): Promise<void> {
    await this.#attempt(m.couldnt_reset(), "POST", "/reset");
  }

  async join(): Promise<void> {
    this.joining = true;
    const member = await this.#attempt<Member>(m.couldnt_add_chat(), "POST", "/join");
    this.joining = false;
    if (!member) return;
    this.#context.keyring.removeKeys(this.id);
    this.known = { id: this.id, title: this.known.title, created: true };
    this.roleFromServer = member.role;
    this.#context.follow(this);
  }

  setPresence(state: Record<string, unknown> | null): void {
    this.#context.setActivity(state);
  }

  call<T>(method: string, path: string, body?: unknown): Promise<T> {
    return withRetry(() => request<T>(method, path, { keys: this.keys, ...(body !== undefined && { body }) }), { maxAttempts: 5 });
  }

  download(path: string): Promise<Blob> {
    return downloadBlob(path, { keys: this.keys });
  }

  upload(file: File, { progress, signal }: { progress?: (share: number) => void; signal?: AbortSignal }): Promise<BlobRef> {
    const path = this.#path(`/blobs?name=${encodeURIComponent(file.name)}`);
    return upload(path, file, { keys: this.keys, ...(progress && { onProgress: progress }), ...(signal && { signal }) });
  }

  async members(): Promise<readonly Member[]> {
    const { items } = await this.call<{ items: Member[] }>("GET", this.#path("/members"));
    return items;
  }

  /** Request our role, unless our own key says it. */
  async loadRole(): Promise<void> {
    if (this.known.key) return;
    const found = await this.#context.requests.quietly<{ role: Role }>("GET", this.#path("/access"), { keys: this.keys });
    if (found) this.roleFromServer = found.role;
  }

  #path(rest: string): string {
    return `/api/threads/${this.id}${rest}`;
  }

  #attempt<T>(what: string, method: string, rest: string, body?: unknown): Promise<T | undefined> {
    return this.#context.requests.attempt<T>(what, method, this.#path(rest), { keys: this.keys, ...(body !== undefined && { body }) });
  }
}


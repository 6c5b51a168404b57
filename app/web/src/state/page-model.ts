// What the page knows, as its components see it. Every field is reactive (runes); who changes something calls a method.

import type { BlobRef, Block, Finish, Invitation, Listed, Member, Message, Role, RunOptions, Thread, User } from "../khala/frames.ts";

/** How the connection stands; `until` is the time (ms) of the next try. */
export type Connection = { phase: "connecting" | "live" | "waiting" | "offline" | "closed"; until?: number };

/** How a message stands: a question on its way is "sending", "queued" (offline) or "failed", one that is stored "sent". */
export type MessageDisplayStatus = "sending" | "queued" | "failed" | "sent" | "writing" | "done" | "stopped" | "interrupted";

/** What the error of a send, or of an answer, says to a person. `retryAt` is when (ms) another try makes sense; `final` that none does. */
export type MessageError = { reason: string; retryAt?: number; final?: boolean };

/** One block of a message, which changes in place: whoever shows it is drawn anew, and nobody else. */
export interface BlockView {
  readonly key: string;
  readonly block: Block;
}

export interface MessageView {
  readonly id: string;
  /** Without its content, which is in `blocks`. */
  readonly head: Omit<Message, "content">;
  readonly blocks: readonly BlockView[];
  readonly displayStatus: MessageDisplayStatus;
  readonly error: MessageError | null;
  /** Which try it is to send a question, from 1; 0 for all else. */
  readonly attempt?: number;
  readonly finish: Finish | null;
  /** Which round of tools it is at: of the last `step` part that was heard. */
  readonly step: { step: number; maxSteps: number; usage?: { inputTokens: number; outputTokens: number }; costUsd?: string } | null;
  /** When tool calls began to run, in ms of the server's clock, by their ids. */
  readonly toolStartedAt: Readonly<Record<string, number>>;
  /** The ids of those that stand in this place on other branches, itself included, oldest first. */
  readonly versions: readonly string[];
  /** The name of its author if that is somebody else than who looks on, else null. */
  readonly author: string | null;
  readonly text: string;
  readonly files: readonly BlobRef[];
}

export type Participant = { id: string; userId?: string; name?: string; anonymous: boolean; state: Record<string, unknown> };
export type ThreadKeys = { anonKey?: string; shareKey?: string };

/** The open chat. */
export interface ChatView {
  readonly id: string;
  readonly keys: ThreadKeys;
  readonly thread: Thread | null;
  readonly title: string;
  /** Null while it is not known yet what we may do. */
  readonly role: Role | null;
  readonly mayWrite: boolean;
  /** Whether others than us may read it, as far as is known here. */
  readonly shared: boolean;
  /** An answer is being written, or a question is on its way. */
  readonly busy: boolean;
  /** Whether there is a run that `stop` would stop. */
  readonly stoppable: boolean;
  /** Whether anything was asked yet. */
  readonly hasQuestions: boolean;
  /** Whether `join` would put it on the account's list. */
  readonly joinable: boolean;
  readonly joining: boolean;
  /** The branch that is shown, root to leaf, with what is still on its way at its end. */
  readonly messages: readonly MessageView[];
  /** The ids of all messages that are known, oldest first, whichever branch they are on; `hasMore` says that there are older ones. */
  readonly ids: readonly string[];
  readonly hasMore: boolean;
  readonly loading: boolean;
  /** Shown from this browser's store while the server can't be reached. */
  readonly stale: boolean;
  /** The server will not let us follow it (any more); `message` is for the person. `forgettable`: this browser has a key to it, or a note of it. */
  readonly refusal: { code: string; message: string; forgettable: boolean } | null;
  /** The others who are here, each once, however many pages they have open; never ourselves. Who has no name is a guest. */
  readonly participants: readonly Participant[];
  readonly moreParticipants: number;
  /** The answer that is being written, if there is one. */
  readonly activeAnswer: MessageView | null;
  /** How far (ms) our clock is ahead of the server's. */
  readonly clockLagMs: number;
  /** `parentId` is the message that it follows, null for none, by default the end of the branch in sight; `options` those of the page. */
  send(text: string, files?: readonly BlobRef[], how?: { parentId?: string | null; options?: RunOptions }): void;
  /** Send what failed again, under the same id. */
  resend(id: string): void;
  /** Keep a chat that was shared by a link on the account's list. */
  join(): Promise<void>;
  /** Take back what was not sent; its text and files. */
  withdraw(id: string): { text: string; files: readonly BlobRef[] } | null;
  /** Write another answer to the same question, beside the one with this id. */
  regenerate(answerId: string): Promise<void>;
  /** Ask the question anew with another text, beside the one with this id. */
  edit(questionId: string, text: string): void;
  /** Show the branch in which this message is. */
  showBranch(messageId: string): void;
  stop(): Promise<void>;
  loadEarlier(): Promise<void>;
  /** Empty it for everyone. Whoever calls this has asked the person before. */
  reset(): Promise<void>;
  /** What we are doing, as `{typing: true}`, for others to see; null for nothing. That we are here is told without it, where somebody could care. */
  setPresence(state: Record<string, unknown> | null): void;
  /** A request with this chat's keys. Refusal and Unreachable as in `khala/requests.ts`. */
  call<T>(method: string, path: string, body?: unknown): Promise<T>;
  upload(file: File, on: { progress?: (share: number) => void; signal?: AbortSignal }): Promise<BlobRef>;
  members(): Promise<readonly Member[]>;
}

/** A chat in the list: from the account's, or from what this browser has keys to. */
export interface ChatListItem {
  readonly id: string;
  readonly title: string;
  readonly role: Role;
  /** "Only in this browser", "By a link", "Shared with you", or "". */
  readonly accessNote: string;
  readonly unread: boolean;
  readonly running: boolean;
  readonly needsApproval: boolean;
  readonly changedAt: number;
  /** Whether its only key is kept in this browser. */
  readonly isAnonymous: boolean;
  readonly entry: Listed | null;
}

export interface ChatListModel {
  readonly items: readonly ChatListItem[];
  readonly hasMore: boolean;
  readonly anonymousCount: number;
  add(): void;
  rename(id: string, title: string): Promise<void>;
  /** Delete it (as its owner), leave it (as a member), or forget its key (as a guest). Whoever calls this has asked the person before. */
  remove(id: string): Promise<void>;
  /** Forget what this browser knows of it, its key too, without a word to the server. */
  forget(id: string): void;
  /** Chats that the account is invited to, newest first. */
  readonly invitations: readonly Invitation[];
  /** Become a member of the chat, and open it. */
  accept(id: string): Promise<void>;
  decline(id: string): Promise<void>;
}

export type SignInMethods = { registration: boolean; oidc?: { name: string } };

export interface Account {
  readonly user: User | null;
  readonly name: string;
  signInMethods(): Promise<SignInMethods>;
  signIn(way: "login" | "register", fields: { email: string; password: string; name?: string }): Promise<void>;
  signOut(): Promise<void>;
  rename(name: string): Promise<void>;
  remove(password?: string): Promise<void>;
  /** Anonymous chats of this browser become the account's. */
  claimAll(): Promise<void>;
  /** The browser leaves for an OpenID Provider and may come back signed in. */
  expectSignIn(): void;
  /** The account after a change that a request of one's own has made, such as a first password. */
  refresh(): Promise<void>;
}

/** What the person chose in this browser; kept in localStorage. */
export interface Preferences {
  autopilot: boolean;
  maxSteps: number;
  /** Budgets of a run on autopilot, as the person typed them; empty for none. */
  budgetUsd: string;
  budgetTokens: string;
  /** The id of the agent's template that is loaded, or null. */
  agent: string | null;
  preview: boolean;
}

export interface PageModel {
  readonly connection: Connection;
  readonly account: Account;
  readonly chats: ChatListModel;
  readonly chat: ChatView | null;
  readonly preferences: Preferences;
  /** The time (ms), once a second while something counts. */
  readonly now: number;
  /** Options for the next run: autopilot, steps, budget and the agent's instructions and tools. */
  options(): RunOptions;
  open(id: string): void;
  wake(): void;
  /** Tell a screen reader. */
  announce(text: string): void;
  readonly announcement: string;
  /** Show a short message that goes away by itself. */
  toast(text: string): void;
  readonly toasts: readonly { id: number; text: string }[];
  /** Ask before something that can't be undone. */
  confirm(question: { title: string; text: string; yes: string }): Promise<boolean>;
  readonly question: { title: string; text: string; yes: string; answer: (yes: boolean) => void } | null;
  /** How many chats of this browser the account could keep, after a login elsewhere; 0 if there is nothing to ask. */
  readonly claimableCount: number;
  /** The answer to that. */
  answerClaimOffer(yes: boolean): Promise<void>;
  /** The code with which a login elsewhere has ended, for the sign-in dialog. */
  readonly signInProblem: string | null;
  /** Which dialog is open. */
  dialog: "signin" | "share" | "account" | "gallery" | "search" | null;
}

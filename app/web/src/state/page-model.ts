// The model of the page, as its components see it. Every field is reactive; changes go through methods.

import type { Agent, AgentChanges, BlobRef, Block, Finish, Invitation, Member, Message, NewAgent, Participant, PlanState, Role, RunOptions, Thread, ThreadListEntry, User } from "@khala/client";
import type { ThreadKeys } from "../workers/stream.messages.ts";

export type { Participant, ThreadKeys };

/** The state of the connection. `until` is the time of the next attempt, in ms since the epoch. */
export type Connection = { phase: "connecting" | "live" | "waiting" | "offline" | "closed"; until?: number };

/**
 * The status of a message. A question is "sending", "queued" (offline) or "failed" until it is stored, then "sent". An answer is
 * "queued" while it waits for another answer to end.
 */
export type MessageDisplayStatus = "sending" | "queued" | "failed" | "sent" | "writing" | "done" | "stopped" | "interrupted";

/** The error of a send or of an answer. `code` and `cause` are those of an answer’s error, and `reason` has the server’s words; `retryAt` (ms since the epoch; of an answer, by the clock of the server) is the earliest sensible retry; `final` means that no retry helps. */
export type MessageError = { reason: string; code?: string; cause?: string; retryAt?: number; final?: boolean };

/** One block of a message. It changes in place, and redraws only what shows it. */
export interface BlockView {
  readonly key: string;
  readonly block: Block;
}

export interface MessageView {
  readonly id: string;
  /** The message without its content, which is in `blocks`. */
  readonly head: Omit<Message, "content">;
  readonly blocks: readonly BlockView[];
  readonly displayStatus: MessageDisplayStatus;
  readonly error: MessageError | null;
  /** The number of the current send attempt, from 1; absent for stored messages. */
  readonly attempt?: number;
  readonly finish: Finish | null;
  /** The newest `step` part of its run. */
  readonly step: { step: number; maxSteps: number; usage?: { inputTokens: number; outputTokens: number }; costUsd?: string } | null;
  /** The number of memories that its model was told. */
  readonly memoryCount: number;
  /** When tool calls started, by tool call id, in ms since the epoch on the server's clock. */
  readonly toolStartedAt: Readonly<Record<string, number>>;
  /** The ids of its alternative versions, itself included, oldest first. */
  readonly versions: readonly string[];
  /** The name of its author if it is somebody else, otherwise null. */
  readonly author: string | null;
  readonly text: string;
  readonly files: readonly BlobRef[];
}


/** The open chat. */
export interface ChatView {
  readonly id: string;
  readonly keys: ThreadKeys;
  readonly thread: Thread | null;
  readonly title: string;
  /** Whether it is on no list, and the server deletes it after a day. */
  readonly isTemporary: boolean;
  /** Our role; null while it is unknown. */
  readonly role: Role | null;
  readonly mayWrite: boolean;
  /** Whether we write in it as a guest whom others can read. */
  readonly isGuest: boolean;
  /** Whether others may read it, as far as this page knows. */
  readonly shared: boolean;
  /** Whether an answer is being written or a message is being sent. */
  readonly busy: boolean;
  /** Whether there is a run to stop. */
  readonly stoppable: boolean;
  /** Whether the chat has any question yet. */
  readonly hasQuestions: boolean;
  /** Whether `join` would add it to the account's list. */
  readonly joinable: boolean;
  readonly joining: boolean;
  /** The shown branch from root to leaf, followed by messages that are being sent. */
  readonly messages: readonly MessageView[];
  /** The ids of all loaded messages on all branches, oldest first. `hasMore` says whether there are older ones. */
  readonly ids: readonly string[];
  readonly hasMore: boolean;
  readonly loading: boolean;
  /** Whether it is shown from the browser's storage because the server is out of reach. */
  readonly stale: boolean;
  /** The server's refusal, with a message for the person. `forgettable`: this browser has stored a key or a note of the chat. */
  readonly refusal: { code: string; message: string; forgettable: boolean } | null;
  /** The other participants, each once, without ourselves. A participant without a name is a guest. */
  readonly participants: readonly Participant[];
  readonly moreParticipants: number;
  /** The answer that is being written, if any. */
  readonly activeAnswer: MessageView | null;
  /** Its plans, the newest first. */
  readonly plans: readonly PlanState[];
  /** The loaded answers of plans' steps, in order. `head.step` names the step of each. */
  readonly stepAnswers: readonly MessageView[];
  /** The revision of the state that is shown; null before the first. */
  readonly revision: number | null;
  /** How far this clock is ahead of the server's, in ms. */
  readonly clockLagMs: number;
  /** Send a message. `parentId` defaults to the end of the shown branch, null means none; `options` default to those of the page. */
  send(text: string, files?: readonly BlobRef[], how?: { parentId?: string | null; options?: RunOptions }): void;
  /** Send a failed message again, under the same id. */
  resend(id: string): void;
  /** Add a chat that was shared by a link to the account's list. */
  join(): Promise<void>;
  /** Take back a message that was not sent, or by its id an answer that waits for its turn. Returns the text and files of what we wrote. */
  withdraw(id: string): { text: string; files: readonly BlobRef[] } | null;
  /** Write another answer beside the one with this id, by another model if one is named. */
  regenerate(answerId: string, model?: string): Promise<void>;
  /** Ask a question again with another text, beside the one with this id. */
  edit(questionId: string, text: string): void;
  /** Show the branch of this message. */
  showBranch(messageId: string): void;
  /** Stop the active answer, or the one with this id. */
  stop(answerId?: string): Promise<void>;
  loadEarlier(): Promise<void>;
  /** Delete all messages, for everyone. The caller has asked for confirmation. */
  reset(): Promise<void>;
  /** Set our presence state, such as `{typing: true}`; null for none. That we are present is reported without it. */
  setPresence(state: Record<string, unknown> | null): void;
  /** Send a request with this chat's keys. Errors as those of `request` in `khala/requests.ts`. */
  call<T>(method: string, path: string, body?: unknown): Promise<T>;
  /** Download a file with this chat's keys. Errors as those of `call`. */
  download(path: string): Promise<Blob>;
  upload(file: File, on: { progress?: (share: number) => void; signal?: AbortSignal }): Promise<BlobRef>;
  members(): Promise<readonly Member[]>;
}

/** A chat in the list, from the account's list or from this browser's keys. */
export interface ChatListItem {
  readonly id: string;
  readonly title: string;
  readonly role: Role;
  /** How we have access to it, in words; empty for a chat of our own. */
  readonly accessNote: string;
  readonly unread: boolean;
  readonly running: boolean;
  readonly needsApproval: boolean;
  /** Whether a plan there has paused by itself, and waits for a person. */
  readonly planWaits?: boolean;
  readonly changedAt: number;
  /** Whether its only key is in this browser. */
  readonly isAnonymous: boolean;
  readonly entry: ThreadListEntry | null;
  readonly pinned: boolean;
  readonly archived: boolean;
  /** The name of its folder, or null. */
  readonly folder: string | null;
  /** Whether it has nothing that would be missed: no question, title, place on the list or other people. */
  readonly isEmpty: boolean;
}

/** Where a person keeps a chat on their own list. What is left out stays as it is. */
export type ChatListing = { pinned?: boolean; archived?: boolean; folder?: string | null };

/** A folder of the account. `agent` is the name of the one that answers there if the person has chosen none. */
export type ChatFolder = { readonly name: string; readonly threads: number; readonly agent?: string; readonly hasInstructions?: true };

/** A button in a toast. */
export type ToastAction = { label: string; act: () => void };

export interface ChatListModel {
  readonly items: readonly ChatListItem[];
  readonly hasMore: boolean;
  readonly anonymousCount: number;
  /** The folders of the account on the server, which may be empty. Others have a chat that only this browser knows. Null while they are unknown. */
  readonly folders: readonly ChatFolder[] | null;
  loadFolders(): Promise<void>;
  /** The agent of the open chat's folder, which answers if the person has chosen none; null for none. */
  readonly folderAgent: string | null;
  /** Use the agent of the folder no longer in the open chat. */
  stopFolderAgent(): void;
  /** The chat has other members or invitations, so it is listed even if nothing has happened in it. Known in this browser only. */
  noteMembers(id: string): void;
  /** Open a new chat, unless the open one is new and of this kind. `folder`: it is in this folder. */
  add(isTemporary?: boolean, folder?: string): void;
  rename(id: string, title: string): Promise<void>;
  /** Pin it, archive it or put it into a folder. Returns whether that succeeded. */
  organise(id: string, changes: ChatListing): Promise<boolean>;
  /**
   * Delete it as its owner, leave it as a member, or forget its key as a guest. The caller has asked for confirmation, unless the
   * deletion can be undone for `undoSeconds`, which a toast offers. 0: it offers nothing.
   */
  remove(id: string, undoSeconds: number): Promise<void>;
  /** Remove what this browser has stored about it, including its key, without a request to the server. */
  forget(id: string): void;
  /** The keys that this browser has to a chat. */
  keysOf(id: string): ThreadKeys;
  /** Whether the server has the chat, as far as this browser knows. */
  isStored(id: string): boolean;
  /** Open invitations of the account, newest first. */
  readonly invitations: readonly Invitation[];
  /** Join the chat and open it. */
  accept(id: string): Promise<void>;
  decline(id: string): Promise<void>;
}

export type SignInOptions = { registration: boolean; oidc?: { name: string } };

export interface Account {
  readonly user: User | null;
  readonly name: string;
  signInMethods(): Promise<SignInOptions>;
  signIn(way: "login" | "register", fields: { email: string; password: string; name?: string }): Promise<void>;
  signOut(): Promise<void>;
  rename(name: string): Promise<void>;
  remove(password?: string): Promise<void>;
  /** Claim the browser's anonymous chats for the account. */
  claimAll(): Promise<void>;
  /** Note that the browser leaves for an OpenID Provider and may return signed in. */
  expectSignIn(): void;
  /** Load the account again after a change by another request, such as a first password. */
  refresh(): Promise<void>;
}

/** The person's settings in this browser, kept in localStorage. */
export interface Preferences {
  autopilot: boolean;
  maxSteps: number;
  /** The budgets of a run on autopilot, as typed; empty for none. */
  budgetUsd: string;
  budgetTokens: string;
  /** The agent that answers the next messages, by its name or the link of a shared one; null for none. */
  agent: string | null;
  preview: boolean;
  /** Whether a notification of the browser says that a plan needs somebody. */
  planNotifications: boolean;
}

/** The models that the person has chosen for chats, kept in localStorage. */
export interface ChatModelsModel {
  /** The chosen model of a chat, `provider:name`; null if the server chooses. */
  of(chatId: string): string | null;
  choose(chatId: string, model: string | null): void;
}

/** The agents that the person may use: the account's own, and built-in ones. */
export interface AgentsModel {
  /** By name; null until they are known. */
  readonly items: readonly Agent[] | null;
  /** Whether the items are as the server had them at the last request; otherwise they are from an earlier visit. */
  readonly isCurrent: boolean;
  /** Whether the last request for the list failed. */
  readonly hasFailed: boolean;
  load(): Promise<void>;
  /** The items at hand, or those of an earlier visit; only without either it asks the server. Empty if that fails. */
  lastKnown(): Promise<readonly Agent[]>;
  /** A known agent, by name or link. */
  find(agent: string | null): Agent | null;
  titleOf(agent: string): string;
  /** The agent that was shared by this link, or null if it is not shared any more. Errors as those of `request`. */
  open(link: string): Promise<Agent | null>;
  create(agent: NewAgent): Promise<Agent>;
  change(name: string, changes: AgentChanges): Promise<Agent>;
  remove(name: string): Promise<void>;
  /** Make a link to an own agent, and return it. A link from before stops working. */
  share(name: string): Promise<string>;
  /** Revoke its link. */
  unshare(name: string): Promise<void>;
}

export interface PageModel {
  readonly connection: Connection;
  readonly isOnline: boolean;
  readonly account: Account;
  readonly chats: ChatListModel;
  readonly chat: ChatView | null;
  readonly preferences: Preferences;
  readonly chatModels: ChatModelsModel;
  readonly agents: AgentsModel;
  /** The current time in ms since the epoch, updated once a second while it is shown. */
  readonly now: number;
  /** The options of the next run: autopilot, steps, budget, agent and model. */
  options(): RunOptions;
  open(id: string): void;
  wake(): void;
  /** Announce a text to screen readers. */
  announce(text: string): void;
  readonly announcement: string;
  /** Show a short message that disappears by itself, after `seconds` if that is given. */
  toast(text: string, action?: ToastAction, seconds?: number): void;
  /** Close a toast. */
  dismiss(id: number): void;
  readonly toasts: readonly { id: number; text: string; action?: ToastAction }[];
  /** Ask for confirmation of something that can't be undone. */
  confirm(question: { title: string; text: string; yes: string }): Promise<boolean>;
  readonly question: { title: string; text: string; yes: string; answer: (yes: boolean) => void } | null;
  /** The number of anonymous chats that the account could claim after an external sign-in; 0 if there is nothing to ask. */
  readonly claimableCount: number;
  /** Claim those chats, or leave them in the browser. */
  answerClaimOffer(yes: boolean): Promise<void>;
  /** The error code of a failed external sign-in, for the sign-in dialog. */
  readonly signInProblem: string | null;
  /** The path of the server that asked for a sign-in, to open after it; null if none did. */
  signInReturn: string | null;
  /** The link of the shared agent that the address names, until the gallery is closed. */
  sharedAgent: string | null;
  /** The dialog that is open. */
  dialog: "signin" | "share" | "gallery" | "search" | "settings" | "chat-settings" | "palette" | "rename" | "folder" | "schedules" | "send-later" | null;
}

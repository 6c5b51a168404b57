"use client";

// Hooks for threads, runs, presence and the thread list. All read one store for each thread, so components never show
// different states of it in one render. A thread is followed while a mounted component uses it.

import { answerStatus, textOf } from "@khala/client";
import type { AnswerStatus, ApprovalOptions, Khala, MessageState, Observable, PresenceView, SendOptions, ThreadClient, ThreadListView, ThreadMessage, ThreadOptions, ThreadView, ToolBlock } from "@khala/client";
import { useCallback, useEffect, useMemo, useSyncExternalStore } from "react";

import { useKhala } from "./provider.ts";

/** The view of a thread, and commands for it. The functions stay the same while `threadId` does. */
export interface UseThread extends ThreadView {
  readonly thread: ThreadClient;
  /** Show the message at once, and send it when the network is there. Returns its id. Throws `OutboxFullError`. */
  readonly send: (text: string, options?: Omit<SendOptions, "signal">) => string;
  /** Send a message again that was refused: one whose `delivery.phase` is "failed". */
  readonly resend: (messageId: string) => void;
  /** Remove a message that was not sent. */
  readonly withdraw: (messageId: string) => void;
  /** Ask for another answer to a user's message. */
  readonly regenerate: (messageId: string) => Promise<void>;
  /** Cancel the answer that is being written. */
  readonly cancel: () => Promise<void>;
  /** Load a page of older messages. Returns whether there are more. */
  readonly loadOlder: () => Promise<boolean>;
  /** Subscribe again after the server refused it. */
  readonly retry: () => void;
}

/**
 * Follow a thread. `options` count when the thread is first used: `initial` is the state to render on a server, while the page
 * hydrates, and until the connection has delivered a newer one.
 */
export function useThread(threadId: string, options?: ThreadOptions): UseThread {
  const thread = useThreadClient(threadId, options);
  const view = useObservable(thread, thread.initialView);
  const commands = useMemo(
    () => ({
      thread,
      send: (text: string, sent?: Omit<SendOptions, "signal">) => thread.queue(text, sent),
      resend: (messageId: string) => thread.resend(messageId),
      withdraw: (messageId: string) => thread.withdraw(messageId),
      regenerate: (messageId: string) => thread.regenerate(messageId).then(nothing),
      cancel: () => thread.cancel(),
      loadOlder: () => thread.loadOlder(),
      retry: () => thread.retry(),
    }),
    [thread],
  );
  return useMemo(() => ({ ...view, ...commands }), [view, commands]);
}

/** An answer, and commands for the run that writes it. */
export interface UseRun {
  /** The answer; null if there is none, or none of this run. */
  readonly message: MessageState | null;
  readonly status: AnswerStatus | "none";
  readonly text: string;
  /** Its calls that wait for approval. */
  readonly pendingApprovals: readonly ToolBlock[];
  readonly cancel: () => Promise<void>;
  readonly approve: (toolCallId: string, options?: ApprovalOptions) => Promise<void>;
  readonly deny: (toolCallId: string, options?: Omit<ApprovalOptions, "editedArgs">) => Promise<void>;
}

/**
 * One answer of a thread: that of `runId`, by default the newest of the active branch. The component is rendered again only when
 * this answer changes.
 */
export function useRun(threadId: string, runId?: string): UseRun {
  const thread = useThreadClient(threadId);
  const subscribe = useCallback((listener: () => void) => thread.subscribe(listener), [thread]);
  const message = useSyncExternalStore(
    subscribe,
    () => answerIn(thread.get(), runId),
    () => answerIn(thread.initialView, runId),
  );
  return useMemo(() => runOf(thread, message), [thread, message]);
}

/** The list of the caller's threads, and commands for it. */
export interface UseThreads extends ThreadListView {
  readonly create: Khala["threads"]["create"];
  /** Read the list again; needed for guests only. */
  readonly refresh: () => Promise<void>;
}

/** Follow the caller's thread list. It is live for an account. */
export function useThreads(): UseThreads {
  const { threads } = useKhala();
  const list = useObservable(threads, NO_THREADS);
  return useMemo(() => ({ ...list, create: (options) => threads.create(options), refresh: () => threads.refresh() }), [list, threads]);
}

/** The people who are present in a thread. With `state`, this person is one of them, with that state, while mounted. */
export function usePresence(threadId: string, state?: Record<string, unknown> | null): PresenceView {
  const thread = useThreadClient(threadId);
  const text = state ? JSON.stringify(state) : null;
  useEffect(() => {
    if (text === null) return;
    thread.setPresence(JSON.parse(text) as Record<string, unknown>);
    return () => thread.setPresence(null);
  }, [thread, text]);
  return useObservable(thread.presence, NOBODY);
}

const NOBODY: PresenceView = Object.freeze({ participants: [], more: 0 });
const NO_THREADS: ThreadListView = Object.freeze({ status: "idle", error: null, items: [], hasMore: false, invitations: [] });

function useThreadClient(threadId: string, options?: ThreadOptions): ThreadClient {
  const khala = useKhala();
  // The same id gives the same client: only the options of the first call count.
  // eslint-disable-next-line react-hooks/exhaustive-deps
  return useMemo(() => khala.thread(threadId, options), [khala, threadId]);
}

/** The value of an observable; `initial` on a server and while the page hydrates. */
function useObservable<Value>(observable: Observable<Value>, initial: Value): Value {
  const subscribe = useCallback((listener: () => void) => observable.subscribe(listener), [observable]);
  return useSyncExternalStore(
    subscribe,
    () => observable.get(),
    () => initial,
  );
}

function answerIn({ messages, state }: ThreadView, runId?: string): MessageState | null {
  const isAnswer = (message: ThreadMessage): boolean => message.role === "assistant" && message.runId !== undefined;
  const found = runId === undefined ? messages.findLast(isAnswer) : state.messages.find((message) => message.runId === runId);
  return found ?? null;
}

function runOf(thread: ThreadClient, message: MessageState | null): UseRun {
  const run = message && thread.runOf(message);
  return {
    message,
    status: message === null ? "none" : answerStatus(message),
    text: message === null ? "" : textOf(message),
    pendingApprovals: message?.content.filter((block): block is ToolBlock => block.type === "tool" && block.state === "blocked") ?? [],
    cancel: () => Promise.resolve(run?.cancel()).then(nothing),
    approve: (toolCallId, options) => Promise.resolve(run?.approve(toolCallId, options)).then(nothing),
    deny: (toolCallId, options) => Promise.resolve(run?.deny(toolCallId, options)).then(nothing),
  };
}

function nothing(): void {
  // the commands of hooks have no result: the view shows their effect
}

// One chat: its messages, who is there, and the form for the next message.

import { peopleOf } from "@khala/client";
import { usePresence, useRun, useThread } from "@khala/react";
import { useEffect, useRef, useState } from "react";

import { person } from "./khala.ts";
import { Message } from "./Message.tsx";

const STATES: Record<string, string> = { connecting: "Connecting…", reconnecting: "Reconnecting…", refused: "No access" };

export function Conversation({ threadId }: { threadId: string }) {
  const { messages, status, error, state, send, resend, withdraw, loadOlder, retry } = useThread(threadId);
  const run = useRun(threadId);
  const [draft, setDraft] = useState("");
  const { participants, more } = usePresence(threadId, { typing: draft !== "", person });
  const end = useEndOf(messages);
  const isWriting = run.status === "writing";

  const submit = () => {
    const text = draft.trim();
    if (!text) return;
    send(text, { options: { autopilot: true } });
    setDraft("");
  };

  return (
    <main data-status={status} data-run={run.status}>
      <header>
        <h1>{state.thread?.title ?? "New chat"}</h1>
        <span className="people">{peopleIn(peopleOf(participants).length + more)}</span>
        {status in STATES && (
          <span className="state" role="status">
            {STATES[status]}
          </span>
        )}
      </header>
      <section className="messages" aria-label="Messages" tabIndex={0}>
        {state.hasMore && <button onClick={() => void loadOlder()}>Earlier messages</button>}
        {messages.map((message) => (
          <Message key={message.id} message={message} run={message.id === run.message?.id ? run : null} onResend={resend} onWithdraw={withdraw} />
        ))}
        {status === "refused" && (
          <p role="alert">
            {error?.message} <button onClick={retry}>Try again</button>
          </p>
        )}
        <div ref={end} />
      </section>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <textarea
          aria-label="Message"
          placeholder="Write a message"
          rows={1}
          value={draft}
          onChange={(event) => setDraft(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
        {isWriting && (
          <button type="button" onClick={() => void run.cancel()}>
            Stop
          </button>
        )}
        <button type="submit" className="primary" disabled={!draft.trim()}>
          Send
        </button>
      </form>
    </main>
  );
}

function peopleIn(count: number): string {
  return count > 1 ? `${count} people` : "";
}

/** An element at the end of the messages, which stays in sight as they grow. */
function useEndOf(messages: readonly unknown[]) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [messages]);
  return end;
}

// A chat with the agent of agents.py.

import { textOf } from "@khala/client";
import type { ThreadMessage } from "@khala/client";
import { useRun, useThread, useThreads } from "@khala/react";
import { useState } from "react";

const AGENT = "app:counter";

export function App() {
  const { create } = useThreads();
  const [open, setOpen] = useState(() => location.hash.slice(1));
  const [failure, setFailure] = useState("");

  const start = () => {
    create({ title: "Chat" }).then(
      ({ id }) => {
        location.hash = id;
        setOpen(id);
      },
      (reason: unknown) => setFailure(String(reason)),
    );
  };

  if (open) return <Chat key={open} threadId={open} onNew={start} />;
  return (
    <main>
      <h1>PROJECT_NAME</h1>
      <button onClick={start}>Start a chat</button>
      {failure && <p role="alert">{failure}</p>}
    </main>
  );
}

function Chat({ threadId, onNew }: { threadId: string; onNew: () => void }) {
  const { messages, status, error, send } = useThread(threadId);
  const run = useRun(threadId);
  const [draft, setDraft] = useState("");

  const submit = () => {
    const text = draft.trim();
    if (!text) return;
    send(text, { options: { agent: AGENT } });
    setDraft("");
  };

  return (
    <main>
      <header>
        <h1>PROJECT_NAME</h1>
        <button onClick={onNew}>New chat</button>
      </header>
      {status === "reconnecting" && <p role="status">Reconnecting…</p>}
      {status === "refused" && <p role="alert">{error?.message}</p>}
      <section aria-label="Messages">
        {messages.map((message) => (
          <Message key={message.id} message={message} />
        ))}
      </section>
      {run.pendingApprovals.map(({ toolCallId, tool }) => (
        <p key={toolCallId}>
          May {tool} run?
          <button onClick={() => void run.approve(toolCallId)}>Approve</button>
          <button onClick={() => void run.deny(toolCallId)}>Deny</button>
        </p>
      ))}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <input aria-label="Message" placeholder="Write a message" value={draft} onChange={(event) => setDraft(event.target.value)} />
        {run.status === "writing" && (
          <button type="button" onClick={() => void run.cancel()}>
            Stop
          </button>
        )}
        <button disabled={!draft.trim()}>Send</button>
      </form>
    </main>
  );
}

function Message({ message }: { message: ThreadMessage }) {
  const calls = message.content.flatMap((block) => (block.type === "tool" ? [block] : []));
  return (
    <article className={message.role}>
      {calls.map((call) => (
        <code key={call.toolCallId}>
          {call.tool}: {call.state}{" "}
        </code>
      ))}
      <p>{textOf(message)}</p>
    </article>
  );
}

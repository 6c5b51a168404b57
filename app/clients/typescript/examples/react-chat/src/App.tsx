// The frame of the page: the list of chats beside the open one. The address names the open chat: /#ID.

import { useThreads } from "@khala/react";
import { useEffect, useState } from "react";

import { Conversation } from "./Conversation.tsx";

const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** The chat that the address names; null if there is none. */
function openId(): string | null {
  const id = location.hash.slice(1);
  return ID.test(id) ? id : null;
}

export function App() {
  const [open, setOpen] = useState(openId);
  const { items, status, error, create } = useThreads();
  const [failure, setFailure] = useState<string | null>(null);

  useEffect(() => {
    const follow = () => setOpen(openId());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);

  const start = () => {
    create({ title: `Chat, ${TIME.format(new Date())}` }).then(
      ({ id }) => (location.hash = id),
      (reason: unknown) => setFailure(reason instanceof Error ? reason.message : String(reason)),
    );
  };

  return (
    <div className="app">
      <nav aria-label="Chats">
        <header>
          <strong>Khala chat</strong>
          <button className="primary" onClick={start}>
            New chat
          </button>
        </header>
        {failure && <p role="alert">{failure}</p>}
        <ul>
          {items.map(({ thread, running }) => (
            <li key={thread.id}>
              <a href={`#${thread.id}`} aria-current={thread.id === open ? "page" : undefined}>
                {thread.title ?? "New chat"}
                {running && <span className="dot" title="An answer is being written" />}
              </a>
            </li>
          ))}
        </ul>
        {status === "refused" && <p className="note">{error?.message}</p>}
      </nav>
      {open === null ? (
        <main className="empty">
          <h1>What can I do for you?</h1>
          <button className="primary" onClick={start}>
            Start a chat
          </button>
        </main>
      ) : (
        <Conversation key={open} threadId={open} />
      )}
    </div>
  );
}

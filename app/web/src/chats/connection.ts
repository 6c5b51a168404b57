// How the connection stands, in words.

import type { ChatView, Connection } from "../state/shape.ts";

/** What `data-connection` of the body says; a chat that is refused is followed no more, however the connection is. */
export function standingOf({ phase }: Connection, chat: Pick<ChatView, "refusal"> | null): Connection["phase"] {
  return chat?.refusal ? "closed" : phase;
}

export function connectionWords(standing: Connection["phase"], until: number | undefined, now: number): string {
  const seconds = Math.max(1, Math.ceil(((until ?? now) - now) / 1000));
  const words = { connecting: "Connecting …", live: "Live", waiting: `Reconnecting in ${seconds} s`, offline: "Offline", closed: "Closed" };
  return words[standing];
}

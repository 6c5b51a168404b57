// Queries of the lists of memories.

/** "all": in all chats. "thread": in the open chat. "agent": in runs of one agent. */
export type MemoryFilter = "all" | "user" | "agent" | "thread";

/** Where the memories of the dialog are: a guest's are in the open chat. */
export interface MemoryPlace {
  readonly threadId: string | null;
  readonly isGuest: boolean;
}

/** The query of a list or search. A guest's memories are reached through their chat. */
export function listQuery(filter: MemoryFilter, { threadId, isGuest }: MemoryPlace, more: Readonly<Record<string, string>> = {}): string {
  const scope = filter === "all" ? (isGuest ? "user" : null) : filter;
  const isOfThread = scope === "thread" || isGuest;
  return new URLSearchParams({ ...(scope && { scope }), ...(isOfThread && threadId !== null && { threadId }), ...more }).toString();
}

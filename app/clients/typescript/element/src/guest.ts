// What a guest keeps in the browser: the key of the threads, and the thread of a page.

import { newId, newKey } from "@khala/client";

export interface GuestThread {
  readonly anonKey: string;
  readonly threadId: string;
  /** Whether the server may not have the thread yet. */
  readonly isNew: boolean;
}

/** The guest's thread of this server and name, which is made at the first visit. Without storage it lasts as long as the page. */
export function guestThread(server: string, name: string): GuestThread {
  const item = `khala-chat ${server} ${name}`;
  const stored = read(item);
  if (stored) return stored;
  const made = { anonKey: newKey(), threadId: newId(), isNew: true };
  write(item, made);
  return made;
}

/** Remember that the server has the thread. */
export function markCreated(server: string, name: string, guest: GuestThread): void {
  write(`khala-chat ${server} ${name}`, { ...guest, isNew: false });
}

function read(item: string): GuestThread | null {
  try {
    const value = JSON.parse(localStorage.getItem(item) ?? "null") as Partial<GuestThread> | null;
    if (typeof value?.anonKey !== "string" || typeof value.threadId !== "string") return null;
    return { anonKey: value.anonKey, threadId: value.threadId, isNew: value.isNew === true };
  } catch {
    return null; // Storage is blocked, or holds something else.
  }
}

function write(item: string, guest: GuestThread): void {
  try {
    localStorage.setItem(item, JSON.stringify(guest));
  } catch {
    // Storage is blocked: the thread lasts as long as the page.
  }
}

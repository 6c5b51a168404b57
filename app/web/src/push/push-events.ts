// Notifications in the service worker: shows the server's push messages, and opens the chat that one is about.

import { readTexts } from "../browser/push-texts.ts";
import type { PushTexts } from "../browser/push-texts.ts";

/** What the server sends: `waiting` for a run that waits for a person, `answer` for a long answer that is complete. */
export type PushMessage = { kind: "waiting" | "answer"; threadId: string; title?: string; tool?: string };

// The part of a service worker's scope that is used; TypeScript's worker types can't be combined with those of pages.
interface WindowClient {
  readonly url: string;
  readonly visibilityState: "visible" | "hidden";
  focus(): Promise<unknown>;
  navigate(url: string): Promise<unknown>;
}
export interface NotificationScope {
  readonly clients: {
    matchAll(options: { type: "window"; includeUncontrolled: boolean }): Promise<readonly WindowClient[]>;
    openWindow(url: string): Promise<unknown>;
  };
  readonly registration: { showNotification(title: string, options: NotificationOptions): Promise<void> };
}

const PAGE_NAME = "Khala";
const ICON = "/web/icon.svg";

/** Show the message in the person's language, unless a window shows its chat. A message of a later version is shown in general words. */
export async function showPush(scope: NotificationScope, message: PushMessage): Promise<void> {
  const path = chatPath(message);
  const windows = await pageWindows(scope);
  if (windows.some(({ url, visibilityState }) => visibilityState === "visible" && new URL(url).pathname === path)) return;
  const texts = await readTexts();
  const { title = PAGE_NAME, tool } = texts?.general ? {} : message;
  await scope.registration.showNotification(title, {
    body: bodyOf(message.kind, tool, texts),
    tag: `${message.kind} ${message.threadId}`,
    icon: ICON,
    data: { path },
    ...(texts && { lang: texts.language, dir: texts.direction }),
  });
}

/** Focus a window that shows the chat; else show it in another window of the page, or in a new one. */
export async function openChat(scope: NotificationScope, path: string): Promise<void> {
  const windows = await pageWindows(scope);
  const open = windows.find(({ url }) => new URL(url).pathname === path);
  const shown = open ?? windows[0];
  await (shown ? shown.focus() : scope.clients.openWindow(path));
  // The browser refuses to navigate a window that this service worker does not control.
  if (shown && !open) await shown.navigate(path).catch(() => scope.clients.openWindow(path));
}

/** The windows of the chat page; the console is another one. */
async function pageWindows({ clients }: NotificationScope): Promise<readonly WindowClient[]> {
  const found = await clients.matchAll({ type: "window", includeUncontrolled: true });
  return found.filter(({ url }) => /^\/(t\/|$)/.test(new URL(url).pathname));
}

function chatPath({ threadId }: PushMessage): string {
  return `/t/${encodeURIComponent(threadId)}`;
}

function bodyOf(kind: PushMessage["kind"], tool: string | undefined, texts: PushTexts | null): string {
  if (texts === null) return "";
  if (kind === "answer") return texts.answer;
  return tool === undefined ? texts.waiting : texts.waitingTool.replace("{tool}", () => tool);
}

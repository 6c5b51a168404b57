// Notifications in the service worker: shows the server's push messages, and opens the chat that one is about.

import { readTexts } from "../browser/push-texts.ts";
import { PATH_REQUEST } from "../browser/shown-path.ts";
import { wordsOfTool } from "../browser/tool-words.ts";
import type { PlanPushTexts, PushTexts, ToolPushTexts } from "../browser/push-texts.ts";

/**
 * What the server sends: `waiting` for a run or a plan that waits for a person, `answer` for a long answer that is complete or a
 * long plan that has ended. `reason`: why the plan has paused or ended.
 */
export type PushMessage = { kind: "waiting" | "answer"; threadId: string; title?: string; tool?: string; planId?: string; reason?: string };

// The part of a service worker's scope that is used; TypeScript's worker types can't be combined with those of pages.
interface WindowClient {
  /** The address with which the window was loaded, whatever it shows now. */
  readonly url: string;
  readonly visibilityState: "visible" | "hidden";
  postMessage(message: unknown, transfer: Transferable[]): void;
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
/** The time in which a window says what it shows, in ms. One that is silent counts as showing something else. */
const REPLY_MS = 1000;

/** Show the message in the person's language, unless a window shows its chat. A message of a later version is shown in general words. */
export async function showPush(scope: NotificationScope, message: PushMessage): Promise<void> {
  const path = chatPath(message);
  const visible = (await pageWindows(scope)).filter(({ visibilityState }) => visibilityState === "visible");
  if ((await windowAt(visible, path)) !== undefined) return;
  const texts = await readTexts();
  const { kind, threadId } = message;
  const shown: PushMessage = texts?.general ? { kind, threadId } : message;
  await scope.registration.showNotification(shown.title ?? PAGE_NAME, {
    body: bodyOf(shown, texts),
    tag: `${kind} ${threadId}`,
    icon: ICON,
    data: { path },
    ...(texts && { lang: texts.language, dir: texts.direction }),
  });
}

/** Focus a window that shows the chat; else show it in another window of the page, or in a new one. */
export async function openChat(scope: NotificationScope, path: string): Promise<void> {
  const windows = await pageWindows(scope);
  const open = await windowAt(windows, path);
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

/** The first of these windows that shows this path now. */
async function windowAt(windows: readonly WindowClient[], path: string): Promise<WindowClient | undefined> {
  const paths = await Promise.all(windows.map(shownPath));
  return windows[paths.indexOf(path)];
}

/** The path that a window shows, as the window itself says; null if it is silent. */
function shownPath(window: WindowClient): Promise<unknown> {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    const reply = (path: unknown) => {
      clearTimeout(timer);
      port1.close();
      resolve(path);
    };
    const timer = setTimeout(reply, REPLY_MS, null);
    port1.onmessage = ({ data }) => reply(data);
    window.postMessage(PATH_REQUEST, [port2]);
  });
}

function chatPath({ threadId }: PushMessage): string {
  return `/t/${encodeURIComponent(threadId)}`;
}

function bodyOf({ kind, tool, planId, reason }: PushMessage, texts: PushTexts | null): string {
  if (texts === null) return "";
  if (planId !== undefined && texts.plan) return planBody(kind, reason, texts.plan);
  if (kind === "answer") return texts.answer;
  return tool === undefined ? texts.waiting : texts.waitingTool.replace("{tool}", () => toolInSentence(tool, texts.tools));
}

/** The tool as the page calls it in a sentence. */
function toolInSentence(name: string, texts: ToolPushTexts | undefined): string {
  if (texts === undefined) return name;
  const { builtIn, quoted, ofServer } = texts;
  const own = Object.hasOwn(builtIn, name) ? builtIn[name] : undefined;
  const { words, server } = own === undefined ? wordsOfTool(name, Object.values(builtIn)) : { words: own, server: "" };
  return (server ? ofServer : quoted).replace(/\{(tool|server)\}/g, (_, part) => (part === "tool" ? words : server));
}

function planBody(kind: PushMessage["kind"], reason: string | undefined, texts: PlanPushTexts): string {
  if (kind === "answer") return reason === "completed" ? texts.completed : texts.stopped;
  return reason === "review" ? texts.review : texts.paused;
}

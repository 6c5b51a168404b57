import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import type { OpenChat } from "./chat.svelte.ts";
import { ChatList } from "./chat-list.svelte.ts";
import { Keyring } from "./keyring.ts";
import type { KnownChat } from "./keyring.ts";
import { PageRequests } from "./page-requests.ts";

const USER = "0198c0de-0000-7000-8000-000000000001";

type Answer = { status: number; body: unknown };

let answer: (method: string, path: string) => Promise<Answer> | Answer;
let sent: string[];

beforeEach(() => {
  sent = [];
  answer = () => ({ status: 200, body: {} });
  vi.stubGlobal("fetch", async (url: string | URL, { method = "GET" }: RequestInit = {}) => {
    const path = new URL(url, "http://khala.test").pathname;
    sent.push(`${method} ${path}`);
    const { status, body } = await answer(method, path);
    return new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json" } });
  });
});
afterEach(() => vi.unstubAllGlobals());

/** What is written stays in the memory of the object. */
function createStorage(): BrowserStorage {
  return new BrowserStorage(() => {
    throw new Error("There is no storage.");
  });
}

function setting(userId: string | null = null) {
  const keyring = new Keyring(createStorage(), () => undefined);
  const said: string[] = [];
  const opened: KnownChat[] = [];
  const page = { account: { user: userId === null ? null : { id: userId } }, requests: new PageRequests((words) => said.push(words)), chat: null as Partial<OpenChat> | null, agents: { items: null }, toast: () => undefined };
  const show = (known: KnownChat, changes: Partial<OpenChat> = {}) => (page.chat = { id: known.id, known, refusal: null, revision: 1, unused: true, isTemporary: known.temporary === true, knownTitle: "", ...changes });
  const goTo = (known: KnownChat) => {
    opened.push(known);
    show(keyring.update(known, { created: true }));
  };
  const context = { page, keysChanged: () => 0, forget: () => undefined, goTo };
  const chats = new ChatList(keyring, context as unknown as ConstructorParameters<typeof ChatList>[1]);
  return { chats, keyring, opened, page, said, show };
}

test("a person changes from a new chat to a temporary one and back", () => {
  const { chats, opened } = setting();
  chats.add();
  chats.add(true);
  chats.add(false);
  expect(opened.map(({ temporary = false }) => temporary)).toEqual([false, true, false]);
  expect(opened[2]?.id).toBe(opened[0]?.id);
});

test("after the browser's Back, a new temporary chat opens, and not the chat that is open", () => {
  const { chats, opened, show } = setting();
  chats.add();
  const usual = opened[0];
  if (!usual) throw new Error("No chat was opened.");
  chats.add(true);
  show(usual);
  chats.add(true);
  expect(opened.at(-1)).toMatchObject({ temporary: true });
});

test("there is no way back to a chat of another account", () => {
  const { chats, opened, page } = setting();
  chats.add();
  chats.add(true);
  page.account.user = { id: USER };
  chats.add(false);
  expect(opened[2]?.id).not.toBe(opened[0]?.id);
});

test("a chat that has a plan and no question is not new", () => {
  const { chats, keyring, opened, show } = setting();
  const planned = keyring.update(keyring.add(), { created: true });
  show(planned, { unused: false });
  chats.add(false, "Travel");
  expect(opened).toMatchObject([{ folder: "Travel" }]);
  expect(opened[0]?.id).not.toBe(planned.id);
});

test("an older answer never replaces the folders of a newer one", async () => {
  const { chats } = setting(USER);
  const waiting: ((found: Answer) => void)[] = [];
  answer = () => new Promise((resolve) => waiting.push(resolve));
  expect(chats.folders).toBeNull();
  const loads = [chats.loadFolders(), chats.loadFolders()];
  waiting[1]?.({ status: 200, body: { items: [{ name: "New", threads: 0 }] } });
  await loads[1];
  waiting[0]?.({ status: 200, body: { items: [] } });
  await loads[0];
  expect(chats.folders).toEqual([{ name: "New", threads: 0 }]);
});

const WHOLE_LIST = { whole: true, entries: [], removed: [], revision: 1, hasMore: false, invitations: [] };

test("the folder of a new chat of an account is kept until the list has the chat in it", async () => {
  const { chats, keyring } = setting(USER);
  const known = keyring.update(keyring.add(USER), { folder: "Travel" });
  const folder = () => chats.items.find(({ id }) => id === known.id)?.folder;
  answer = () => ({ status: 200, body: { items: [] } });
  const isFiled = await chats.fileNew(known.id);
  keyring.markCreated(known, { thread: { ownerId: USER } }, isFiled);
  const time = "2026-01-01T00:00:00Z";
  const thread = { id: known.id, visibility: "private" as const, revision: 1, createdAt: time, updatedAt: time };
  const entry = { thread, role: "owner" as const, unread: false, running: false, needsApproval: false, changedAt: time };
  const patch = { ...WHOLE_LIST, whole: false };
  chats.applyPatch({ ...patch, entries: [entry] });
  expect([isFiled, folder()]).toEqual([false, "Travel"]);
  chats.applyPatch({ ...patch, entries: [{ ...entry, folder: "Travel" }] });
  expect([keyring.find(known.id), folder()]).toEqual([null, "Travel"]);
});

test("the folder of a new chat of an account is kept until the server has it", async () => {
  const { chats, keyring, said } = setting(USER);
  const known = keyring.update(keyring.add(USER), { folder: "Travel" });
  answer = () => ({ status: 409, body: { code: "conflict", detail: "There are too many folders." } });
  const isFiled = await chats.fileNew(known.id);
  expect([isFiled, said.length]).toEqual([false, 1]);
  keyring.markCreated(known, { thread: { ownerId: USER } }, isFiled);
  expect(keyring.findUncreated(USER)).toBeNull();
  expect(keyring.find(known.id)).toMatchObject({ created: true, folder: "Travel" });
  answer = () => ({ status: 200, body: { items: [] } });
  sent = [];
  chats.applyPatch(WHOLE_LIST);
  await vi.waitFor(() => expect(keyring.find(known.id)).toBeNull());
  expect(sent).toContain(`PATCH /api/threads/${known.id}/listing`);
});

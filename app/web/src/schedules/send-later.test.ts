import { beforeEach, expect, test, vi } from "vitest";

import { saveTitle } from "../state/account.svelte.ts";
import type { ChatView } from "../state/page-model.ts";
import { scheduleMessage } from "./send-later.ts";
import { sendLater } from "./schedule-requests.ts";

vi.mock("../state/account.svelte.ts", () => ({ saveTitle: vi.fn(() => Promise.resolve()) }));
vi.mock("../state/page.svelte.ts", () => ({ page: { announce: () => undefined, options: () => ({}) } }));
vi.mock("../conversation/composer-state.svelte.ts", () => ({ composerState: { changeDraft: () => undefined } }));
vi.mock("./schedule-requests.ts", () => ({ sendLater: vi.fn(() => Promise.resolve({})), scheduleError: () => "It failed." }));

const AT = new Date("2026-05-01T06:00:00Z");
const NEW = { id: "new", title: "New chat", role: "owner", isTemporary: false } as ChatView;
const titles = () => vi.mocked(saveTitle).mock.calls;

beforeEach(() => vi.mocked(saveTitle).mockClear());

test("a new chat is titled by the message that is sent later, so that it is listed", async () => {
  expect(await scheduleMessage({ chat: NEW, text: "**Water** the plants\n" }, AT)).toBeNull();
  expect(titles()).toEqual([["new", "Water the plants"]]);
});

test("a chat that has a title, is temporary or belongs to somebody else keeps its own", async () => {
  for (const changes of [{ title: "Plans" }, { isTemporary: true }, { role: "editor" as const }]) await scheduleMessage({ chat: { ...NEW, ...changes }, text: "Hi" }, AT);
  expect(titles()).toEqual([]);
});

test("nothing is titled by a message that could not be stored", async () => {
  vi.mocked(sendLater).mockRejectedValueOnce(new TypeError("Failed to fetch"));
  await scheduleMessage({ chat: NEW, text: "Hi" }, AT).catch(() => "");
  expect(titles()).toEqual([]);
});

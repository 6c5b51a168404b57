import { beforeEach, expect, test, vi } from "vitest";

import type { Page, Schedule } from "@khala/client";
import { listSchedules } from "./schedule-requests.ts";
import { WaitingMessages } from "./waiting-messages.svelte.ts";

vi.mock("./schedule-requests.ts", () => ({ listSchedules: vi.fn() }));

const TIMES = { timeZone: "UTC", missed: "once", status: "active", at: "2026-05-01T06:00:00Z", nextAt: "2026-05-01T06:00:00Z", createdAt: "2026-03-01T00:00:00Z", updatedAt: "2026-03-01T00:00:00Z" } as const;
const message = (id: string, threadId: string): Schedule => ({ id, threadId, text: id, ...TIMES });

let answers: ((page: Page<Schedule>) => void)[] = [];

beforeEach(() => {
  answers = [];
  vi.mocked(listSchedules).mockImplementation(() => new Promise((resolve) => answers.push(resolve)));
});

const idsOf = ({ items }: WaitingMessages): string[] => items.map(({ id }) => id);

test("what is created or deleted in another chat leaves the answer for this one in effect", async () => {
  const waiting = new WaitingMessages();
  const loaded = waiting.load("a", "user");
  waiting.put(message("other", "b"));
  waiting.remove(message("other", "b"));
  answers[0]?.({ items: [message("mine", "a")] });
  await loaded;
  expect(idsOf(waiting)).toEqual(["mine"]);
});

test("another account begins with nothing, and a late answer for the previous one is dropped", async () => {
  const waiting = new WaitingMessages();
  waiting.put(message("early", "a"));
  const first = waiting.load("a", "user");
  waiting.put(message("mine", "a"));
  expect(idsOf(waiting)).toEqual(["mine"]);
  const second = waiting.load("a", "other");
  expect(idsOf(waiting)).toEqual([]);
  answers[0]?.({ items: [message("mine", "a")] });
  await first;
  expect(idsOf(waiting)).toEqual([]);
  answers[1]?.({ items: [message("theirs", "a")] });
  await second;
  expect(idsOf(waiting)).toEqual(["theirs"]);
});

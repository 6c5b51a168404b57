import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApprovalAnnouncer } from "./approval-announcer.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("of each question it is told once, and of several that come together in one sentence", () => {
  const said: string[] = [];
  const announcer = new ApprovalAnnouncer((text) => said.push(text));
  announcer.announce("1", "delete_file");
  vi.runAllTimers();
  announcer.announce("1", "delete_file");
  announcer.announce("2", "write_file");
  announcer.announce("3", "write_file");
  vi.runAllTimers();
  vi.runAllTimers();
  expect(said).toEqual(["“Delete file” needs approval.", "2 tool calls need your approval."]);
});

import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Announcer } from "./announcing.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("of each question it is told once, and of several that come together in one sentence", () => {
  const said: string[] = [];
  const announcer = new Announcer((text) => said.push(text));
  announcer.hear("1", "delete_file");
  vi.runAllTimers();
  announcer.hear("1", "delete_file");
  announcer.hear("2", "write_file");
  announcer.hear("3", "write_file");
  vi.runAllTimers();
  vi.runAllTimers();
  expect(said).toEqual(["delete_file needs approval.", "2 tool calls need approval."]);
});

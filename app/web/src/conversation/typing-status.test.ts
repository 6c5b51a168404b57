import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { MessageView, MessageDisplayStatus } from "../state/page-model.ts";
import { AnswerAnnouncer } from "./answer-announcer.ts";
import { TypingStatus } from "./typing-status.ts";

describe("typing", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("is told when it begins and four seconds after the last letter", () => {
    const told: boolean[] = [];
    const typing = new TypingStatus((isTyping) => told.push(isTyping));
    typing.typed(false);
    vi.advanceTimersByTime(3000);
    typing.typed(false);
    vi.advanceTimersByTime(3999);
    expect(told).toEqual([true]);
    vi.advanceTimersByTime(1);
    expect(told).toEqual([true, false]);
  });

  it("ends at once with what was sent, and silently with the chat", () => {
    const told: boolean[] = [];
    const typing = new TypingStatus((isTyping) => told.push(isTyping));
    typing.typed(true);
    typing.typed(false);
    typing.typed(true);
    typing.typed(false);
    typing.end();
    vi.advanceTimersByTime(10_000);
    expect(told).toEqual([true, false, true]);
  });
});

describe("what a screen parser is told", () => {
  const answer = (id: string, standing: MessageDisplayStatus, text = ""): MessageView => ({ id, displayStatus: standing, text }) as MessageView;

  it("is that an answer begins, and once how it ended, with its beginning", () => {
    const told: string[] = [];
    const announcer = new AnswerAnnouncer((words) => told.push(words));
    const writing = answer("a", "writing");
    const done = answer("a", "done", "word ".repeat(100));
    announcer.update("chat", null, () => null);
    announcer.update("chat", writing, () => writing);
    announcer.update("chat", writing, () => writing);
    announcer.update("chat", null, () => done);
    expect(told).toEqual(["Khala is answering.", `Answer complete. ${"word ".repeat(40)}`.trim()]);
  });

  it("is nothing of what went on before the chat was opened, nor of other chats", () => {
    const told: string[] = [];
    const announcer = new AnswerAnnouncer((words) => told.push(words));
    const writing = answer("a", "writing");
    announcer.update(null, null, () => null);
    announcer.update("chat", writing, () => writing);
    announcer.update("other", null, () => null);
    expect(told).toEqual([]);
  });
});

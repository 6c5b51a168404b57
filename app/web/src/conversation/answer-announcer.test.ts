import { expect, test } from "vitest";
import type { MessageView } from "../state/page-model.ts";
import { AnswerAnnouncer } from "./answer-announcer.ts";

/** What is announced if an answer runs and then ends like this. */
function announced(changes: Partial<Pick<MessageView, "displayStatus" | "text" | "error">>): string[] {
  const said: string[] = [];
  const announcer = new AnswerAnnouncer((words) => said.push(words));
  const answer = { id: "a", displayStatus: "done", text: "", error: null, ...changes } as MessageView;
  announcer.update("chat", null, () => null);
  announcer.update("chat", answer, () => answer);
  announcer.update("chat", null, () => answer);
  return said;
}

test("the beginning of an answer and its end are announced, with its first words", () => {
  expect(announced({ text: `It is${" so".repeat(200)}` })).toEqual(["Khala is answering.", `Answer complete. It is${" so".repeat(65)}`]);
});

test("a failure is announced in the words of the page, not in those of the server", () => {
  expect(announced({ displayStatus: "failed", text: "A lease is", error: { code: "unavailable", reason: "The provider answered 503." } }).at(-1)).toBe("Answer failed. The model is unavailable. Try again in a moment, or choose another model.");
});

import { expect, test } from "vitest";
import { isInOurWorkspace } from "./workspace-access.ts";

type Given = Parameters<typeof isInOurWorkspace>[1][number];
const ADA = "00000000-0000-7000-8000-000000000001";
const BOB = "00000000-0000-7000-8000-000000000002";
const GUEST = "00000000-0000-5000-8000-000000000003";
const question = (id: string, authorId?: string): Given => ({ id, head: { role: "user", ...(authorId && { authorId }) }, versions: [id] });
const answer = (id: string, versions: string[] = [id]): Given => ({ id, head: { role: "assistant" }, versions });

test("an answer used our workspace if we asked the question before it", () => {
  const messages = [question("q1", ADA), answer("a1"), question("q2", BOB), answer("a2"), question("q3", GUEST), answer("a3")];
  const ours = (userId: string | null) => ["a1", "a2", "a3"].filter((id) => isInOurWorkspace(id, messages, { userId, isShared: true }));
  expect([ours(ADA), ours(BOB), ours(null)]).toEqual([["a1"], ["a2"], ["a3"]]);
});

test("where nothing says who asked, it is ours only in a chat of our own", () => {
  const messages = [question("q1"), answer("a1"), answer("a2"), question("q2", ADA), answer("b2", ["b1", "b2"])];
  const ours = (isShared: boolean) => ["a1", "a2", "b2", "gone"].filter((id) => isInOurWorkspace(id, messages, { userId: ADA, isShared }));
  expect([ours(false), ours(true)]).toEqual([["a1", "a2", "b2"], []]);
});

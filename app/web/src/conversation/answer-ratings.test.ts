import { expect, test } from "vitest";
import { ApiError } from "@khala/client";
import { AnswerRatings } from "./answer-ratings.svelte.ts";

test("the ratings of a chat are read once, and again after a failure", async () => {
  let reads = 0;
  const chat = {
    id: "t",
    call: <T>() => (++reads === 1 ? Promise.reject(new ApiError(503, { code: "unavailable" })) : Promise.resolve({ items: [{ messageId: "a", rating: "up" }] } as T)),
  };
  const ratings = new AnswerRatings();
  await ratings.load(chat);
  expect(ratings.of("t", "a")).toBeNull();
  await ratings.load(chat);
  await ratings.load(chat);
  expect(reads).toBe(2);
  expect(ratings.of("t", "a")?.rating).toBe("up");
});

test("a rating is stored as the server answers, and removed", async () => {
  const calls: unknown[] = [];
  const chat = { id: "t", call: <T>(...call: unknown[]) => (calls.push(call), Promise.resolve({ messageId: "a", rating: "down", reason: "Too long." } as T)) };
  const ratings = new AnswerRatings();
  await ratings.rate(chat, "a", { rating: "down", reason: " Too long. " });
  expect(ratings.of("t", "a")?.reason).toBe("Too long.");
  await ratings.rate(chat, "a", null);
  expect(ratings.of("t", "a")).toBeNull();
  expect(calls).toEqual([["PUT", "/api/messages/a/feedback", { rating: "down", reason: " Too long. " }], ["DELETE", "/api/messages/a/feedback"]]);
});

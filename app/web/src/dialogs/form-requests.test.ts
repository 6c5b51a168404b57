// @vitest-environment jsdom
import { expect, test } from "vitest";

import { ApiError } from "@khala/client";
import { FormRequests, type Fields, onSubmit } from "./form-requests.svelte.ts";

const no = (): Promise<never> => Promise.reject(new ApiError(409, { code: "conflict", detail: "There is one already." }));

test("a no is told, and gone with the next try", async () => {
  const requests = new FormRequests();
  expect(await requests.attempt(no)).toBeUndefined();
  expect(requests.error).toBe("There is one already.");
  expect(await requests.attempt(() => Promise.resolve(7))).toBe(7);
  expect(requests.error).toBe("");
});

test("what went well without an answer went well", async () => {
  const requests = new FormRequests();
  expect(await requests.succeeds(() => Promise.resolve(undefined))).toBe(true);
  expect(await requests.succeeds(no)).toBe(false);
});

test("a mistake of ours is not swallowed", async () => {
  await expect(new FormRequests().attempt(() => Promise.reject(new TypeError("ours")))).rejects.toThrow("ours");
});

test("a form that is submitted twice is sent once, and again when that is over", async () => {
  document.body.innerHTML = `<form><input name="name" value="Ada"><input name="off" value="x" disabled></form>`;
  const form = document.querySelector("form");
  if (form === null) throw new Error("The form is missing.");
  const sent: Fields[] = [];
  let end: () => void = () => undefined;
  form.addEventListener("submit", onSubmit(async (fields) => {
    sent.push(fields);
    await new Promise<void>((resolve) => (end = resolve));
  }));
  const submit = (): boolean => form.dispatchEvent(new SubmitEvent("submit", { cancelable: true }));
  expect(submit()).toBe(false);
  submit();
  expect(sent).toEqual([{ name: "Ada" }]);
  end();
  await new Promise((resolve) => setTimeout(resolve));
  submit();
  expect(sent).toHaveLength(2);
});

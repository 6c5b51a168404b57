import { afterEach, expect, test, vi } from "vitest";

import { ACCOUNT_STORAGE_KEY } from "../browser/account-note.ts";
import { PUSH_STORAGE_KEY } from "../browser/push-account.ts";

const ANN = { id: "ann", name: "Ann", admin: true, identities: [], createdAt: "" };

afterEach(() => {
  vi.unstubAllGlobals();
  vi.resetModules();
});

test("signing out in the console has the page confirm its notifications, although the same account signs in again", async () => {
  const push = { people: ["ann"], answers: true, confirmed: { ann: { id: "s1", at: 5, language: "en" } } };
  const stored = new Map([[ACCOUNT_STORAGE_KEY, JSON.stringify(ANN)], [PUSH_STORAGE_KEY, JSON.stringify(push)]]);
  vi.stubGlobal("localStorage", {
    getItem: (name: string) => stored.get(name) ?? null,
    setItem: (name: string, value: string) => void stored.set(name, value),
    removeItem: (name: string) => void stored.delete(name),
  });
  let isSignedIn = true;
  vi.stubGlobal("fetch", (path: string, { method }: RequestInit) => {
    if (method === "POST") isSignedIn = path.endsWith("/login");
    if (path !== "/api/me") return Promise.resolve(Response.json({}));
    return Promise.resolve(isSignedIn ? Response.json(ANN) : Response.json({ status: 401, code: "unauthorized", detail: "" }, { status: 401 }));
  });
  const { session } = await import("./session.svelte.ts");
  await session.check();
  expect(JSON.parse(stored.get(PUSH_STORAGE_KEY) ?? "")).toEqual(push);
  await session.signOut();
  expect([session.state, stored.has(ACCOUNT_STORAGE_KEY)]).toEqual(["signed-out", false]);
  await session.signIn("ann@example.com", "secret");
  expect(session.state).toBe("admin");
  expect(JSON.parse(stored.get(PUSH_STORAGE_KEY) ?? "")).toEqual({ ...push, confirmed: { ann: { id: "s1", at: 0, language: "en" } } });
});

import { IDBFactory } from "fake-indexeddb";
import { describe, expect, test } from "vitest";

import { openDatabase } from "./database.ts";
import { PriceList, type FetchPath } from "./prices.ts";

const LIST = { default: "a:b", items: [{ model: "a:b", provider: "a", name: "b", inputUsdPerMillion: "2" }] };
const says = (body: unknown, status = 200): Response => new Response(JSON.stringify(body), { status });

/** A server that answers these in turn, and then no more. */
function serverOf(...answers: (() => Response)[]): FetchPath & { asked: number } {
  const fetch = Object.assign(
    () => {
      const answer = answers[fetch.asked++];
      return answer ? Promise.resolve(answer()) : Promise.reject(new TypeError("offline"));
    },
    { asked: 0 },
  );
  return fetch;
}

describe("the price list", () => {
  test("is asked for once in ten minutes", async () => {
    let now = 0;
    const server = serverOf(() => says(LIST), () => says({ ...LIST, default: "c" }));
    const list = new PriceList(null, server, () => now);
    expect(await Promise.all([list.get(), list.get()])).toEqual([LIST, LIST]);
    now = 599_000;
    await list.get();
    expect(server.asked).toBe(1);
    now = 601_000;
    expect((await list.get()).default).toBe("c");
  });

  test("is the last that was kept where the server can't be reached or makes no sense, and is asked for again", async () => {
    const database = await openDatabase(new IDBFactory());
    await new PriceList(database, serverOf(() => says(LIST)), () => 0).get();
    for (const server of [serverOf(), serverOf(() => says({}, 503)), serverOf(() => says({ items: 1 }))]) {
      const later = new PriceList(database, server, () => 0);
      expect(await later.get()).toEqual(LIST);
      await later.get();
      expect(server.asked).toBe(2);
    }
  });

  test("is an error where there never was one, until there is", async () => {
    const list = new PriceList(null, serverOf(() => says({ detail: "no" }, 500), () => says(LIST)), () => 0);
    await expect(list.get()).rejects.toThrow("500");
    expect(await list.get()).toEqual(LIST);
  });
});

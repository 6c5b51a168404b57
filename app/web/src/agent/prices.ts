// The server's price list, requested at most every ten minutes and stored for when the server is out of reach.

import { isPrices, type Prices } from "./cost.ts";
import { requested, write } from "./database.ts";

const MAX_AGE_MS = 600_000;
const FETCH_TIMEOUT_MS = 15_000;
const KEY = "list";

export type FetchPath = (path: string, init: RequestInit) => Promise<Response>;

export class PriceList {
  readonly #database: IDBDatabase | null;
  readonly #fetch: FetchPath;
  readonly #clock: () => number;
  #current: { at: number; prices: Promise<Prices> } | null = null;

  constructor(database: IDBDatabase | null, fetch: FetchPath, clock: () => number) {
    this.#database = database;
    this.#fetch = fetch;
    this.#clock = clock;
  }

  /** The list, at most ten minutes old, or the stored one if the request fails. Throws if there is neither. */
  get(): Promise<Prices> {
    if (this.#current && this.#clock() - this.#current.at < MAX_AGE_MS) return this.#current.prices;
    const prices = this.#load();
    const asked = { at: this.#clock(), prices };
    this.#current = asked;
    prices.catch(() => {
      if (this.#current === asked) this.#current = null;
    });
    return prices;
  }

  async #load(): Promise<Prices> {
    try {
      const response = await this.#fetch("/api/models", { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
      const answer: unknown = response.ok ? await response.json() : null;
      if (!isPrices(answer)) throw new Error(`The server answered ${response.status}, without prices.`);
      if (this.#database) await write(this.#database, ["prices"], (store) => void store("prices").put(answer, KEY));
      return answer;
    } catch (error) {
      const kept = await this.#loadStored();
      // The next call requests the list again, because the stored one may be outdated.
      this.#current = null;
      if (kept === null) throw error;
      return kept;
    }
  }

  async #loadStored(): Promise<Prices | null> {
    if (!this.#database) return null;
    const kept: unknown = await requested(this.#database.transaction("prices").objectStore("prices").get(KEY));
    return isPrices(kept) ? kept : null;
  }
}

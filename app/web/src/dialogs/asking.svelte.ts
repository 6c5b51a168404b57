// What a dialog asks of the server: one thing of a kind at a time, with the "no" in its own words.

import { request, withRetry, isRequestError } from "../khala/requests.ts";
import { errorMessage } from "../state/error-messages.ts";

/** The fields of a form, by their names; what is disabled is not among them. */
export type Fields = Readonly<Record<string, string>>;

/** The requests of one dialog; `wrong` is what was said no to last, for its alert. */
export class Asking {
  wrong = $state("");
  readonly #words: (error: unknown) => string;

  constructor(words: (error: unknown) => string = errorMessage) {
    this.#words = words;
  }

  /** The answer, or undefined after a "no", which is told in `wrong`. */
  async tried<T>(ask: () => Promise<T>): Promise<T | undefined> {
    this.wrong = "";
    try {
      return await ask();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.wrong = this.#words(error);
      return undefined;
    }
  }

  /** Whether it went well. */
  async done(ask: () => Promise<unknown>): Promise<boolean> {
    return (await this.tried(async () => (await ask(), true))) ?? false;
  }
}

/** Ask for what is no great loss if it fails: null then. */
export async function quietly<T>(ask: () => Promise<T>): Promise<T | null> {
  try {
    return await withRetry(ask, { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return null;
  }
}

/** What an address of the account tells, or null. */
export function read<T>(path: string): Promise<T | null> {
  return quietly(() => request<T>("GET", path));
}

/** A form's `onsubmit`: does `act` with its fields, once at a time. */
export function submitting(act: (fields: Fields, form: HTMLFormElement) => Promise<void>): (event: SubmitEvent) => void {
  let isBusy = false;
  return (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    if (isBusy || !(form instanceof HTMLFormElement)) return;
    isBusy = true;
    const entries = [...new FormData(form)].map(([name, value]) => [name, typeof value === "string" ? value : ""] as const);
    void act(Object.fromEntries(entries), form).finally(() => (isBusy = false));
  };
}

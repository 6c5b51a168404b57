// Requests of a dialog's forms: one submission at a time, with an error message for the dialog.

import { isRequestError, request, withRetry } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";

/** The values of a form's fields by name, without disabled ones. */
export type Fields = Readonly<Record<string, string>>;

/** The requests of one dialog. `error` is the message of the last failure, "" after a success. */
export class FormRequests {
  error = $state("");
  readonly #words: (error: unknown) => string;

  constructor(words: (error: unknown) => string = errorMessage) {
    this.#words = words;
  }

  /** The answer, or undefined after a failed request, whose message is in `error`. */
  async attempt<T>(ask: () => Promise<T>): Promise<T | undefined> {
    this.error = "";
    try {
      return await ask();
    } catch (error) {
      if (!isRequestError(error)) throw error;
      this.error = this.#words(error);
      return undefined;
    }
  }

  /** Whether the request succeeded. */
  async succeeds(ask: () => Promise<unknown>): Promise<boolean> {
    return (await this.attempt(async () => (await ask(), true))) ?? false;
  }
}

/** The answer of an optional request, null if it fails after three attempts. */
export async function requestOrNull<T>(ask: () => Promise<T>): Promise<T | null> {
  try {
    return await withRetry(ask, { maxAttempts: 3 });
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return null;
  }
}

/** The answer of a GET request, or null. */
export function getOrNull<T>(path: string): Promise<T | null> {
  return requestOrNull(() => request<T>("GET", path));
}

/** A form's `onsubmit` handler: calls `act` with the fields, and ignores further submissions until it is done. */
export function onSubmit(act: (fields: Fields, form: HTMLFormElement) => Promise<void>): (event: SubmitEvent) => void {
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

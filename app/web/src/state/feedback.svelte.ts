// What the page says to the person: to their screen reader, in short messages that go away, and in questions.

import type { Page } from "./shape.ts";

const TOAST_MS = 8000;
const MOST_TOASTS = 4;

export class Feedback implements Pick<Page, "announce" | "announced" | "toast" | "toasts" | "confirm" | "question"> {
  announced = $state("");
  toasts: Page["toasts"] = $state.raw([]);
  question: Page["question"] = $state.raw(null);
  #count = 0;

  announce(text: string): void {
    this.announced = text;
  }

  toast(text: string): void {
    const id = ++this.#count;
    this.toasts = [...this.toasts, { id, text }].slice(-MOST_TOASTS);
    setTimeout(() => (this.toasts = this.toasts.filter((one) => one.id !== id)), TOAST_MS);
  }

  /** Only one question is asked at a time: another one answers the one before with no. */
  confirm(asked: { title: string; text: string; yes: string }): Promise<boolean> {
    this.question?.answer(false);
    return new Promise((resolve) => {
      const answer = (yes: boolean) => {
        if (this.question === question) this.question = null;
        resolve(yes);
      };
      const question = { ...asked, answer };
      this.question = question;
    });
  }
}

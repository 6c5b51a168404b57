// What the page reports to the person: announcements to a screen reader, toasts, and questions.

import type { PageModel } from "./page-model.ts";

const TOAST_DURATION_MS = 8000;
const MAX_TOASTS = 4;

export class Feedback implements Pick<PageModel, "announce" | "announcement" | "toast" | "toasts" | "confirm" | "question"> {
  announcement = $state("");
  toasts: PageModel["toasts"] = $state.raw([]);
  question: PageModel["question"] = $state.raw(null);
  #count = 0;

  announce(text: string): void {
    this.announcement = text;
  }

  toast(text: string): void {
    const id = ++this.#count;
    this.toasts = [...this.toasts, { id, text }].slice(-MAX_TOASTS);
    setTimeout(() => (this.toasts = this.toasts.filter((one) => one.id !== id)), TOAST_DURATION_MS);
  }

  /** Ask a question. Only one is open at a time: a new question answers the previous one with no. */
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

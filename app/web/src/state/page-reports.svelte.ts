// What the page reports to the person: announcements to a screen reader, toasts, and questions.

import type { PageModel, ToastAction } from "./page-model.ts";

const TOAST_SECONDS = 8;
const MAX_TOASTS = 4;

export class PageReports implements Pick<PageModel, "announce" | "announcement" | "toast" | "dismiss" | "toasts" | "confirm" | "question"> {
  announcement = $state("");
  toasts: PageModel["toasts"] = $state.raw([]);
  question: PageModel["question"] = $state.raw(null);
  #count = 0;

  announce(text: string): void {
    this.announcement = text;
  }

  toast(text: string, action?: ToastAction, seconds = TOAST_SECONDS): void {
    const id = ++this.#count;
    this.toasts = [...this.toasts, { id, text, ...(action && { action }) }].slice(-MAX_TOASTS);
    setTimeout(() => this.dismiss(id), seconds * 1000);
  }

  dismiss(id: number): void {
    this.toasts = this.toasts.filter((one) => one.id !== id);
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

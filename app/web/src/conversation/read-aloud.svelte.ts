// Reads an answer aloud with the browser's voices.

import { formatLocale } from "../i18n/locale.ts";
import { spokenText, utterances } from "./spoken-text.ts";

class ReadAloud {
  /** The id of the message that is being read; null if none is. */
  messageId: string | null = $state(null);

  get isSupported(): boolean {
    return "speechSynthesis" in globalThis;
  }

  /** Read a message in Markdown, in place of one that is being read. */
  start(messageId: string, markdown: string): void {
    this.stop();
    const parts = utterances(spokenText(markdown));
    if (parts.length === 0) return;
    this.messageId = messageId;
    const end = (): void => {
      if (this.messageId === messageId) this.messageId = null;
    };
    parts.forEach((text, at) => {
      const utterance = new SpeechSynthesisUtterance(text);
      utterance.lang = formatLocale();
      utterance.onerror = end;
      if (at === parts.length - 1) utterance.onend = end;
      speechSynthesis.speak(utterance);
    });
  }

  stop(): void {
    this.messageId = null;
    speechSynthesis.cancel();
  }
}

export const readAloud = new ReadAloud();

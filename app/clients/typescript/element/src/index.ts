// @khala/element: importing it defines <khala-chat>. See README.md.

import { KhalaChatElement } from "./khala-chat.ts";

export { KhalaChatElement } from "./khala-chat.ts";
export type { ThreadTokenProvider } from "./khala-chat.ts";
export type { ChatLabels } from "./labels.ts";

if (!customElements.get("khala-chat")) customElements.define("khala-chat", KhalaChatElement);

declare global {
  interface HTMLElementTagNameMap {
    "khala-chat": KhalaChatElement;
  }
}

// The texts of the page in the chosen language.

import type * as Catalog from "../../catalogs/compiled/messages/en.js";

export type Messages = typeof Catalog;

/**
 * One function per message, such as `m.save()`. It is set before any module of the page is loaded, and stays until the page is
 * reloaded, so constants may use it.
 */
export let m: Messages;

export function setMessages(messages: Messages): void {
  m = messages;
}

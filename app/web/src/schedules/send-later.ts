// Sends what is in the composer at a later time.

import { isRequestError } from "@khala/client";
import { composerState } from "../conversation/composer-state.svelte.ts";
import { storableText } from "../conversation/drafts.ts";
import { saveTitle } from "../state/account.svelte.ts";
import { page } from "../state/page.svelte.ts";
import type { ChatView } from "../state/page-model.ts";
import { NEW_CHAT } from "../state/strings.ts";
import { titleFrom } from "../state/title-text.ts";
import { momentLabel } from "./rhythm-labels.ts";
import { scheduleError, sendLater } from "./schedule-requests.ts";
import { waitingMessages } from "./waiting-messages.svelte.ts";
import { m } from "../i18n/messages.ts";

/** A message in the composer of a chat. */
export type ComposedMessage = { chat: ChatView; text: string };

class SendLaterState {
  /** The message for which the dialog asks for a time; the dialog takes it. */
  message: ComposedMessage | null = null;
}

export const sendLaterState = new SendLaterState();

/** Store the message, to be sent at this time, and empty the composer of its chat unless the text there was changed. Returns what failed, in words; null if nothing did. */
export async function scheduleMessage({ chat, text }: ComposedMessage, at: Date): Promise<string | null> {
  try {
    const made = await sendLater(chat.id, { text: storableText(text), at, options: page.options() });
    waitingMessages.put(made);
    void titleByMessage(chat, text);
    page.announce(m.will_be_sent_at({ time: momentLabel(at.toISOString(), Date.now()) }));
    composerState.changeDraft(chat.id, (draft) => (draft === text ? "" : draft));
    return null;
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return scheduleError(error, { creates: true });
  }
}

/** Title a new chat by the message that waits in it. Without messages and a title, it would not be listed. */
async function titleByMessage({ id, title, role, isTemporary }: ChatView, text: string): Promise<void> {
  const derived = titleFrom(text);
  if (derived !== null && title === NEW_CHAT && role === "owner" && !isTemporary) await saveTitle(id, derived);
}

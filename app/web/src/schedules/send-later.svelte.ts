// Sends what is in the composer at a later time.

import { isRequestError } from "@khala/client";
import { storableText } from "../conversation/drafts.ts";
import { page } from "../state/page.svelte.ts";
import type { ChatView } from "../state/page-model.ts";
import { momentLabel } from "./rhythm-labels.ts";
import { scheduleError, sendLater } from "./schedule-requests.ts";
import { waitingMessages } from "./waiting-messages.svelte.ts";
import { m } from "../i18n/messages.ts";

/** A message in the composer of a chat. `onscheduled` empties the composer. */
export type ComposedMessage = { chat: ChatView; text: string; onscheduled: () => void };

class SendLaterState {
  /** The message for which the dialog asks for a time. */
  message: ComposedMessage | null = $state.raw(null);
}

export const sendLaterState = new SendLaterState();

/** Store the message, to be sent at this time. Returns what failed, in words; null if nothing did. */
export async function scheduleMessage({ chat, text, onscheduled }: ComposedMessage, at: Date): Promise<string | null> {
  try {
    const made = await sendLater(chat.id, { text: storableText(text), at, options: page.options() });
    waitingMessages.put(made);
    page.announce(m.will_be_sent_at({ time: momentLabel(at.toISOString(), Date.now()) }));
    onscheduled();
    return null;
  } catch (error) {
    if (!isRequestError(error)) throw error;
    return scheduleError(error, { creates: true });
  }
}

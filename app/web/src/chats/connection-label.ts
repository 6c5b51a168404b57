// The label of the connection status.

import type { Connection } from "../state/page-model.ts";
import { m } from "../i18n/messages.ts";

export function connectionLabel({ phase, until = 0 }: Connection, now: number): string {
  const seconds = Math.max(1, Math.ceil((until - now) / 1000));
  const words = { connecting: m.connecting(), live: m.live(), waiting: m.reconnecting_in_seconds_s({ seconds }), offline: m.offline(), closed: m.not_connected() };
  return words[phase];
}

// The label of the connection status.

import type { Connection } from "../state/page-model.ts";

export function connectionLabel({ phase, until = 0 }: Connection, now: number): string {
  const seconds = Math.max(1, Math.ceil((until - now) / 1000));
  const words = { connecting: "Connecting…", live: "Live", waiting: `Reconnecting in ${seconds} s`, offline: "Offline", closed: "Not connected" };
  return words[phase];
}

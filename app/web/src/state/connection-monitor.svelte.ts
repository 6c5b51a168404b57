// Monitors the connection: its state, and whether it is lost for so long that an active answer counts as interrupted.

import type { Connection } from "./page-model.ts";

/** A shorter loss does not interrupt an answer. */
const INTERRUPTED_AFTER_MS = 5000;

export class ConnectionMonitor {
  #phase: Connection = $state.raw({ phase: "connecting" });
  #timer: ReturnType<typeof setTimeout> | undefined;
  isOnline = $state(true);
  isInterrupted = $state(false);

  /** Take the connection state of the realtime client. */
  update(connection: Connection): void {
    this.#phase = connection;
    if (connection.phase !== "live") {
      this.#timer ??= setTimeout(() => (this.isInterrupted = true), INTERRUPTED_AFTER_MS);
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.isInterrupted = false;
  }

  get state(): Connection {
    return this.#phase.phase !== "live" && !this.isOnline ? { phase: "offline" } : this.#phase;
  }
}

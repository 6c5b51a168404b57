// The line to the server: how it stands, and whether it is lost for so long that an answer counts as interrupted.

import type { Connection } from "./shape.ts";

/** A shorter loss interrupts nothing. */
const CUT_MS = 5000;

export class Line {
  #phase: Connection = $state.raw({ phase: "connecting" });
  #timer: ReturnType<typeof setTimeout> | undefined;
  isOnline = $state(true);
  isCut = $state(false);

  /** The feed's word on it. */
  take(connection: Connection): void {
    this.#phase = connection;
    if (connection.phase !== "live") {
      this.#timer ??= setTimeout(() => (this.isCut = true), CUT_MS);
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.isCut = false;
  }

  get standing(): Connection {
    return this.#phase.phase !== "live" && !this.isOnline ? { phase: "offline" } : this.#phase;
  }
}

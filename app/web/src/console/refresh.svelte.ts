// Whether the console refreshes by itself, and the time that views show ages by.

const CLOCK_INTERVAL_MS = 1000;

class Refresh {
  /** The switch in the header. */
  isOn = $state(true);
  /** The present time in ms since the epoch, updated each second. */
  now = $state(Date.now());
  /** When a view has last read its data; null before the first time. */
  readAt: number | null = $state(null);

  /** Whether a view should read again: hidden tabs do not. */
  get isDue(): boolean {
    return this.isOn && !document.hidden;
  }

  hasRead(): void {
    this.readAt = Date.now();
  }

  /** Update `now` until the returned function is called. */
  tick(): () => void {
    const timer = setInterval(() => (this.now = Date.now()), CLOCK_INTERVAL_MS);
    return () => clearInterval(timer);
  }
}

export const refresh = new Refresh();

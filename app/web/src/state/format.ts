// Numbers, sizes, times and money as people read them.

/** "840 ms", "1.2 s" */
export function formatMilliseconds(value: number): string {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** "7 s", "2 min 5 s", "3 h 10 min", "40 days": whole seconds of `value` (ms), 0 if it is negative. */
export function formatDuration(value: number): string {
  const seconds = Math.max(0, Math.floor(value / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** "45 s", "12 min", "24 h", "3 days": `value` (ms) rounded to its largest unit; 0 if it is negative. */
export function formatTimeLeft(value: number): string {
  const seconds = Math.max(0, Math.round(value / 1000));
  if (seconds < 90) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}

/** "840 bytes", "1.2 MB" */
export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  const [unit, per] = bytes < 1e6 ? (["kB", 1e3] as const) : bytes < 1e9 ? (["MB", 1e6] as const) : (["GB", 1e9] as const);
  return `${(bytes / per).toFixed(1)} ${unit}`;
}

/** "12 Mar 2026, 14:05" */
export function formatDateTime(time: string): string {
  return new Date(time).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** "$0.50", and "$0.0012" where it is less than a cent. */
export function formatUsd(usd: number): string {
  return usd === 0 ? "$0" : `$${usd >= 0.01 ? usd.toFixed(2) : usd.toPrecision(2)}`;
}

// Generates ids and anonymous keys.

/** Returns a new UUID of version 7. `crypto.randomUUID` is missing on plain-HTTP hosts and creates version 4 only. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let now = Date.now();
  for (let index = 5; index >= 0; index--, now = Math.floor(now / 256)) bytes[index] = now % 256;
  bytes.set([((bytes[6] ?? 0) & 0x0f) | 0x70], 6);
  bytes.set([((bytes[8] ?? 0) & 0x3f) | 0x80], 8);
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Returns a new random secret of 256 bits in hex, for use as an `anonKey`. */
export function newKey(): string {
  return hex(crypto.getRandomValues(new Uint8Array(32)));
}

/** The id, if it is a UUID. Throws `TypeError` otherwise, so that an id from an address can't lead to another route. */
export function checkedId(id: string): string {
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id)) throw new TypeError(`This is no id, which is a UUID: ${JSON.stringify(id.slice(0, 100))}`);
  return id;
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

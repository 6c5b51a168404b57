// The client, and what this browser keeps: the guest's key, which is secret, and an id of the person, which the others see.

import { Khala, newId, newKey } from "@khala/client";

/** The item of the browser's storage, which is made at the first visit. */
function stored(item: string, make: () => string): string {
  const value = localStorage.getItem(item) ?? make();
  localStorage.setItem(item, value);
  return value;
}

const anonKey = stored("khala.key", newKey);
/** The same in all tabs of this browser, so that they count as one person. */
export const person = stored("khala.person", newId);

/** An application with accounts of its own passes `credentials: { token: () => fetchToken() }` instead. */
export const khala = new Khala({ server: (import.meta.env.VITE_KHALA_URL as string | undefined) ?? location.origin, credentials: { anonKey } });

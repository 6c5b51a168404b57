// The client, and the guest's key, which this browser keeps.

import { Khala, newKey } from "@khala/client";

const anonKey = (localStorage["khala.key"] as string | undefined) ?? newKey();
localStorage["khala.key"] = anonKey;

/** An application with accounts of its own passes `credentials: { token: () => fetchToken() }` instead. */
export const khala = new Khala({ server: (import.meta.env.VITE_KHALA_URL as string | undefined) ?? location.origin, credentials: { anonKey } });

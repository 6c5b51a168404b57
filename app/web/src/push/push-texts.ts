// The texts of notifications. The page stores them in its language for the service worker, which has no messages.

/** `waitingTool` has the placeholder `{tool}`. */
export type PushTexts = { language: string; direction: "ltr" | "rtl"; waiting: string; waitingTool: string; answer: string };

/** Its name has not the prefix of the page's caches, which are deleted with their version. */
export const PUSH_TEXTS_CACHE = "push-texts";
export const PUSH_TEXTS_PATH = "/push-texts";

/** Store the texts for the service worker. */
export async function storeTexts(texts: PushTexts): Promise<void> {
  const cache = await caches.open(PUSH_TEXTS_CACHE);
  await cache.put(PUSH_TEXTS_PATH, new Response(JSON.stringify(texts)));
}

// The texts of notifications. The page stores them in its language for the service worker, which has no messages.

/**
 * `waitingTool` has the placeholder `{tool}`. `plan` and `tools`: not in texts that an older page has stored. `general`: notifications say
 * neither the title of a chat, nor a tool, nor what a plan needs.
 */
export type PushTexts = { language: string; direction: "ltr" | "rtl"; waiting: string; waitingTool: string; answer: string; plan?: PlanPushTexts; tools?: ToolPushTexts; general?: true };

/** `review`: the result of a step waits for it. `paused`: for another reason. `completed`, and `stopped` before that. */
export type PlanPushTexts = { review: string; paused: string; completed: string; stopped: string };

/** `builtIn`: tools in words, by their names. A tool in a sentence is `quoted`, with `{tool}`, or `ofServer`, with `{tool}` and `{server}`. */
export type ToolPushTexts = { builtIn: Record<string, string>; quoted: string; ofServer: string };

/** Its name has not the prefix of the page's caches, which are deleted with their version. */
const PUSH_TEXTS_CACHE = "push-texts";
const PUSH_TEXTS_PATH = "/push-texts";

/** Store the texts for the service worker. */
export async function storeTexts(texts: PushTexts): Promise<void> {
  const cache = await caches.open(PUSH_TEXTS_CACHE);
  await cache.put(PUSH_TEXTS_PATH, new Response(JSON.stringify(texts)));
}

/** The stored texts, null if there are none. */
export async function readTexts(): Promise<PushTexts | null> {
  const found = await (await caches.open(PUSH_TEXTS_CACHE)).match(PUSH_TEXTS_PATH);
  return found ? ((await found.json()) as PushTexts) : null;
}

/** Show general texts only, until texts are stored again. */
export async function hideDetails(): Promise<void> {
  const texts = "caches" in globalThis ? await readTexts() : null;
  if (texts) await storeTexts({ ...texts, general: true });
}

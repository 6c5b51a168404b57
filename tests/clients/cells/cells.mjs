// Runs the cells of one client's row in the matrix of clients, and prints their results as JSON: `cells.py` for Node.
export const server = process.env.KHALA_URL;
export const baseURL = `${server}/v1`;
export const token = process.env.KHALA_TOKEN;
export const spentToken = process.env.KHALA_SPENT_TOKEN;
export const providerModel = process.env.KHALA_PROVIDER_MODEL;
export const png =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
export const words = (count) => Array.from({ length: count }, (_, index) => `word${index + 1}`).join(" ");
export const call = '/call weather {"city": "Aiur"} /say It is fine.';
export const approvalCall =
  '/call write_file {"path": "a.txt", "content": "one"} /then /call delete_file {"path": "a.txt"} /say Over.';
export const weather = {
  name: "weather",
  description: "Tells the weather.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
};
const CELL_TIMEOUT_MS = 60_000;
const results = {};

const trimmed = (result) => Object.fromEntries(Object.entries(result).filter(([, value]) => value?.length));
export const works = (note = "", ...words) => trimmed({ state: "works", note, words });
export const refused = (...words) => trimmed({ state: "refused", words });
export const ignored = (note) => ({ state: "ignored", note });
export const absent = (feature, note) => void (results[feature] = { state: "absent", note });

export async function cell(feature, run) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("timed out")), CELL_TIMEOUT_MS)));
  try {
    results[feature] = (await Promise.race([run(), late])) ?? works();
  } catch (error) {
    results[feature] = { state: "failed", note: String(error?.stack ?? error) };
  } finally {
    clearTimeout(timer);
  }
}

export async function message(promise) {
  try {
    await promise;
  } catch (error) {
    return error.message;
  }
  throw new Error("no error was raised");
}

export async function until(condition, ms = 20_000) {
  const deadline = Date.now() + ms;
  let found;
  while (!(found = await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return found;
}

export async function get(path, headers = { Authorization: `Bearer ${token}` }) {
  const response = await fetch(server + path, { headers });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}

// Whether the answer to this message, which begins a thread, is canceled.
export async function isCanceled(prompt) {
  const active = ["draft", "streaming"];
  const status = async () => {
    for (const { id } of (await get("/api/threads?limit=20")).items) {
      const { messages } = await get(`/api/threads/${id}`);
      if (messages.at(-2)?.content.some((block) => block.text === prompt)) return messages.at(-1).status;
    }
    throw new Error(`no thread has the message ${prompt}`);
  };
  return (await until(async () => ((found) => !active.includes(found) && found)(await status()))) === "canceled";
}

export function finish() {
  process.stdout.write(`${JSON.stringify(results)}\n`, () => process.exit(0));
}

import { Feed, call, insist, newId, newKey, pathTo, standing, textOf } from "./index.ts";
import type { Keys, Sent, ThreadState } from "./index.ts";

const SERVER = "http://127.0.0.1:8000";

/** Make a thread that only this key opens. */
export async function begin(server = SERVER): Promise<{ threadId: string; keys: Keys }> {
  const [threadId, keys] = [newId(), { anonKey: newKey() }];
  await insist(() => call("POST", `${server}/api/threads`, { body: { id: threadId, ...keys } }));
  return { threadId, keys };
}

/** Ask, and be told the answer as it grows; what is known of the thread when it has ended. */
export async function ask(threadId: string, keys: Keys, text: string, told: (answer: string) => void, known?: ThreadState, server = SERVER): Promise<ThreadState> {
  const messageId = newId();
  const ended = new Promise<ThreadState>((resolve, reject) => {
    const feed = new Feed(`${server.replace("http", "ws")}/api/ws`, {
      state: (state) => {
        const [question, answer] = pathTo(state.messages, messageId).slice(-2);
        if (question?.id !== messageId || answer === undefined) return;
        told(textOf(answer));
        if (standing(answer) === "writing") return;
        feed.close();
        resolve(state);
      },
      refused: (code) => reject(new Error(code)),
    });
    feed.follow(threadId, keys, known);
  });
  // The same id each time: however often it is tried, the message is there once.
  await insist(() => call<Sent>("POST", `${server}/api/threads/${threadId}/send`, { body: { messageId, text }, keys }));
  return ended;
}

/** Make an anonymous thread the account's; the key opens nothing after that. */
export async function claim(threadId: string, { anonKey }: Keys, token: string, server = SERVER): Promise<void> {
  await insist(() => call("POST", `${server}/api/threads/${threadId}/claim`, { body: { anonKey }, keys: { token } }));
}

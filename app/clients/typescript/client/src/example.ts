import { RealtimeClient, answerStatus, newId, newKey, pathTo, request, textOf, withRetry } from "./index.ts";
import type { AccessKeys, SendResult, ThreadState } from "./index.ts";

const SERVER = "http://127.0.0.1:8000";

/** Create a thread that only the returned key grants access to. */
export async function createThread(server = SERVER): Promise<{ threadId: string; keys: AccessKeys }> {
  const [threadId, keys] = [newId(), { anonKey: newKey() }];
  await withRetry(() => request("POST", `${server}/api/threads`, { body: { id: threadId, ...keys } }));
  return { threadId, keys };
}

/** Send a message and report its answer as it grows. Resolves with the thread's state once the answer has ended. */
export async function ask(threadId: string, keys: AccessKeys, text: string, onText: (answer: string) => void, known?: ThreadState, server = SERVER): Promise<ThreadState> {
  const messageId = newId();
  const ended = new Promise<ThreadState>((resolve, reject) => {
    const client = new RealtimeClient(`${server.replace("http", "ws")}/api/ws`, {
      onThread: (state) => {
        const [question, answer] = pathTo(state.messages, messageId).slice(-2);
        if (question?.id !== messageId || answer === undefined) return;
        onText(textOf(answer));
        if (answerStatus(answer) === "writing") return;
        client.close();
        resolve(state);
      },
      onRefused: (code) => reject(new Error(code)),
    });
    client.subscribe(threadId, keys, known);
  });
  // The message id is the idempotency key: however often the request is retried, the message is stored once.
  await withRetry(() => request<SendResult>("POST", `${server}/api/threads/${threadId}/send`, { body: { messageId, text }, keys }));
  return ended;
}

/** Transfer an anonymous thread to an account. The anonymous key grants no access afterwards. */
export async function claim(threadId: string, { anonKey }: AccessKeys, token: string, server = SERVER): Promise<void> {
  await withRetry(() => request("POST", `${server}/api/threads/${threadId}/claim`, { body: { anonKey }, keys: { token } }));
}

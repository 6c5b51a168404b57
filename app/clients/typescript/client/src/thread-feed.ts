// Follows one thread as long as somebody observes it: connects, resumes by cursor, and renews the token when it is refused.

import type { Api } from "./api.ts";
import type { Message, OlderMessages, Participant } from "./frames.ts";
import { LiveValue } from "./observable.ts";
import type { Observable, StopListening } from "./observable.ts";
import type { OutboxEntry } from "./outbox.ts";
import type { RealtimeOptions } from "./realtime-client.ts";
import { RealtimeClient } from "./realtime-client.ts";
import { webSocketClass } from "./reconnecting-socket.ts";
import type { AccessKeys } from "./requests.ts";
import { backoffMs } from "./requests.ts";
import type { ThreadState } from "./state.ts";
import { EMPTY_THREAD, withOlderMessages } from "./state.ts";
import type { PresenceView, SubscriptionError, SubscriptionStatus, ThreadView } from "./thread-view.ts";
import { viewOf } from "./thread-view.ts";

/** A feed that nobody observes stays connected for so long, so that a component may unmount and mount again. */
export const LINGER_MS = 1_000;
/** Refusals that another token may cure. */
const TOKEN_CODES: readonly string[] = ["forbidden", "unauthorized"];

const NOBODY: PresenceView = Object.freeze({ participants: [], more: 0 });

export interface ThreadFeedOptions extends RealtimeOptions {
  /** An earlier state of the thread, from which to continue. */
  initial?: ThreadState;
  /** The messages that wait to be sent. */
  queued: Observable<readonly OutboxEntry[]>;
  /** Called with each new state. */
  onState: (state: ThreadState) => void;
}

/** The view of a thread and the people in it, followed while `view` or `presence` has listeners. */
export class ThreadFeed {
  readonly view: LiveValue<ThreadView>;
  readonly presence: LiveValue<PresenceView>;
  /** The view before anything was received. */
  readonly initialView: ThreadView;
  readonly #api: Api;
  readonly #threadId: string;
  readonly #options: ThreadFeedOptions;
  #client: RealtimeClient | null = null;
  #keys: AccessKeys = {};
  #state: ThreadState;
  #status: SubscriptionStatus = "idle";
  #error: SubscriptionError | null = null;
  #ownPresence: Record<string, unknown> | null = null;
  /** Whether a refused token was renewed since the last frame. */
  #hasRenewed = false;
  /** Increments with each start and stop, so that late answers of earlier ones are ignored. */
  #generation = 0;
  #cleanUp: StopListening[] = [];

  constructor(api: Api, threadId: string, options: ThreadFeedOptions) {
    this.#api = api;
    this.#threadId = threadId;
    this.#options = options;
    this.#state = options.initial ?? EMPTY_THREAD;
    this.initialView = viewOf(threadId, "idle", null, this.#state, []);
    this.view = new LiveValue(this.initialView, () => this.#start(), () => this.#stop(), LINGER_MS); // prettier-ignore
    let unhold: StopListening = () => undefined;
    const hold = (): void => void (unhold = this.view.subscribe(() => undefined));
    this.presence = new LiveValue(NOBODY, hold, () => unhold(), 0);
    if (options.queued.get().length > 0) this.#publish();
  }

  get state(): ThreadState {
    return this.#state;
  }

  /** Take a page of older messages. */
  addOlderMessages(page: OlderMessages<Message>): void {
    if (this.#client) return this.#client.addOlderMessages(this.#threadId, page);
    this.#state = withOlderMessages(this.#state, page);
    this.#publish();
  }

  /** Try again after a refusal, if somebody observes the thread. */
  retry(): void {
    if (this.#status !== "refused") return;
    this.#hasRenewed = false;
    this.#change(this.#state.revision === null ? "connecting" : "reconnecting");
    this.#client?.close();
    void this.#connect(++this.#generation);
  }

  /** The presence state that others see while the thread is followed; null leaves. */
  setPresence(state: Record<string, unknown> | null): void {
    this.#ownPresence = state;
    this.#client?.setPresence(state);
  }

  /** Connect at once, or check that the connection still works. */
  checkConnection(): void {
    this.#client?.checkConnection();
  }

  #start(): void {
    webSocketClass(this.#options);
    this.#cleanUp = [this.#options.queued.subscribe(() => this.#publish())];
    this.#hasRenewed = false;
    this.#change(this.#state.revision === null ? "connecting" : "reconnecting");
    void this.#connect(++this.#generation);
  }

  #stop(): void {
    this.#generation++;
    for (const clean of this.#cleanUp) clean();
    this.#client?.close();
    this.#client = null;
    this.presence.set(NOBODY);
    this.#change("idle");
  }

  async #connect(generation: number): Promise<void> {
    const keys = await this.#firstKeys(generation);
    if (keys === null || generation !== this.#generation) return;
    this.#keys = keys;
    const client = new RealtimeClient(
      this.#api.socketUrl,
      {
        onThread: (state) => this.#accept(state),
        onPresence: (participants: readonly Participant[], more) => this.presence.set({ participants, more }),
        onConnection: ({ phase }) => {
          if (this.#client === client && this.#status !== "refused") this.#change(this.#statusIn(phase));
        },
        onRefused: (code, message) => void this.#renewOrRefuse({ code, message }, client),
      },
      this.#options,
    );
    this.#client = client;
    client.subscribe(this.#threadId, keys, this.#state);
    if (this.#ownPresence) client.setPresence(this.#ownPresence);
  }

  /** The keys to begin with. While the function for tokens fails, it is called again with exponential backoff. */
  async #firstKeys(generation: number): Promise<AccessKeys | null> {
    for (let attempt = 0; generation === this.#generation; attempt++) {
      try {
        return await this.#api.auth.keys();
      } catch (error) {
        if (generation !== this.#generation) return null;
        this.#change(this.#status, { code: "unauthorized", message: error instanceof Error ? error.message : String(error) });
        await new Promise<void>((resolve) => setTimeout(resolve, backoffMs(attempt, Math.random())));
      }
    }
    return null;
  }

  #accept(state: ThreadState): void {
    this.#hasRenewed = false;
    this.#state = state;
    this.#status = "live";
    this.#error = null;
    this.#publish();
    this.#options.onState(state);
  }

  /** Subscribe again with a newer token. Without one, or if that is refused as well, the feed ends. */
  async #renewOrRefuse(error: SubscriptionError, client: RealtimeClient): Promise<void> {
    const generation = this.#generation;
    const mayRenew = TOKEN_CODES.includes(error.code) && !this.#hasRenewed;
    this.#hasRenewed = true;
    const newer = mayRenew ? await this.#api.auth.refresh(this.#keys).catch(() => this.#firstKeys(generation)) : null;
    if (generation !== this.#generation) return;
    if (newer === null) return this.#change("refused", error);
    this.#keys = newer;
    client.subscribe(this.#threadId, newer, this.#state);
  }

  #statusIn(phase: "connecting" | "live" | "waiting"): SubscriptionStatus {
    if (this.#state.revision === null) return "connecting";
    return phase === "live" ? "live" : "reconnecting";
  }

  #change(status: SubscriptionStatus, error: SubscriptionError | null = null): void {
    this.#status = status;
    this.#error = error;
    this.#publish();
  }

  #publish(): void {
    this.view.set(viewOf(this.#threadId, this.#status, this.#error, this.#state, this.#options.queued.get()));
  }
}

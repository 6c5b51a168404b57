// <khala-chat>: a chat with a Khala server, for any page.

import { Khala } from "@khala/client";
import type { ThreadClient } from "@khala/client";

import { ConversationElement } from "./conversation-element.ts";
import { button, make } from "./elements.ts";
import { guestThread, markCreated } from "./guest.ts";
import type { ChatLabels } from "./labels.ts";
import { isRightToLeft, labelsOf } from "./labels.ts";
import { STYLE } from "./style.ts";

/** Returns a token of the thread. It is called again when the server refuses the token: then `refused` is that token. */
export type ThreadTokenProvider = (refused: string | null) => string | Promise<string>;

/**
 * A chat. It connects while it is in the document, and again when an attribute changes.
 *
 * `server` is the address of the server, by default that of the page. With `thread` and `thread-token`, or the property
 * `token`, it shows that thread. Without them the person is a guest, whose key and thread the browser keeps, one for each
 * `name`. `agent` and `model` choose who answers; `read-only` hides the form; `lang` chooses the language.
 *
 * Events: `khala-ready` when the thread is known (`detail.threadId`), `khala-error` for what the page may want to log
 * (`detail.error`).
 */
export class KhalaChatElement extends HTMLElement {
  static readonly observedAttributes = ["server", "thread", "thread-token", "name", "agent", "model", "read-only", "lang"];

  /** A token of the thread, or a function that returns one and is called again when the server refuses it. */
  token: string | ThreadTokenProvider | null = null;
  /** Texts to show instead of the element's own. */
  labels: Partial<ChatLabels> = {};
  readonly #root: ShadowRoot;
  #khala: Khala | null = null;
  #view: ConversationElement | null = null;
  #isStarting = false;

  constructor() {
    super();
    this.#root = this.attachShadow({ mode: "open" });
  }

  /** The thread that is shown; null before it is known. */
  get threadId(): string | null {
    return this.#thread?.id ?? null;
  }

  #thread: ThreadClient | null = null;

  connectedCallback(): void {
    this.restart();
  }

  disconnectedCallback(): void {
    this.#stop();
  }

  attributeChangedCallback(name: string, before: string | null, after: string | null): void {
    if (this.isConnected && before !== after) this.restart();
  }

  /** Connect again, for example after setting `token` or `labels`. Several calls in a row restart once. */
  restart(): void {
    if (this.#isStarting) return;
    this.#isStarting = true;
    queueMicrotask(() => {
      this.#isStarting = false;
      this.#stop();
      if (this.isConnected) this.#start().catch((error: unknown) => this.#showError(error));
    });
  }

  /** Put a text into the form, for the person to send. */
  write(text: string): void {
    this.#view?.write(text);
  }

  async #start(): Promise<void> {
    const language = this.#language();
    const labels = { ...labelsOf(language), ...this.labels };
    const style = make("style", { text: STYLE });
    const connecting = make("p", { part: "status", text: labels.connecting });
    connecting.setAttribute("role", "status");
    const waiting = make("div", { part: "chat", children: [connecting] });
    waiting.dir = isRightToLeft(language) ? "rtl" : "ltr";
    waiting.dataset.status = "connecting";
    this.#root.replaceChildren(style, waiting);
    const { khala, thread } = this.#open();
    this.#khala = khala;
    const opened = await thread;
    if (this.#khala !== khala) return opened.close(); // Restarted meanwhile.
    this.#thread = opened;
    const options = Object.fromEntries(["agent", "model"].flatMap((name) => (this.hasAttribute(name) ? [[name, this.getAttribute(name)]] : [])));
    this.#view = new ConversationElement(opened, { labels, canSend: !this.hasAttribute("read-only"), options, onError: (error) => this.#report(error) });
    this.#view.element.dir = isRightToLeft(language) ? "rtl" : "ltr";
    this.#view.element.lang = language;
    this.#root.replaceChildren(style, this.#view.element);
    this.#emit("khala-ready", { threadId: opened.id });
  }

  /** The client, and the thread that it opens or creates. */
  #open(): { khala: Khala; thread: Promise<ThreadClient> } {
    const server = new URL(this.getAttribute("server") ?? "", location.href).origin;
    const id = this.getAttribute("thread");
    const token = this.token ?? this.getAttribute("thread-token");
    if (id !== null && token !== null) {
      const khala = new Khala({ server, credentials: { token } });
      return { khala, thread: Promise.resolve().then(() => khala.thread(id)) };
    }
    if (id !== null || token !== null) throw new TypeError("<khala-chat> needs both `thread` and `thread-token`, or neither.");
    const name = this.getAttribute("name") ?? "";
    const guest = guestThread(server, name);
    const khala = new Khala({ server, credentials: { anonKey: guest.anonKey } });
    const create = async (): Promise<ThreadClient> => {
      const thread = await khala.threads.create({ id: guest.threadId });
      markCreated(server, name, guest);
      return thread;
    };
    return { khala, thread: guest.isNew ? create() : Promise.resolve(khala.thread(guest.threadId)) };
  }

  #stop(): void {
    this.#view?.close();
    this.#khala?.close();
    this.#view = this.#thread = this.#khala = null;
  }

  #language(): string {
    const declared = this.closest("[lang]")?.getAttribute("lang");
    return declared ?? navigator.language;
  }

  #showError(error: unknown): void {
    const language = this.#language();
    const labels = { ...labelsOf(language), ...this.labels };
    // What is wrong with the attributes is for the page's developers; a failed request is not.
    const alert = make("p", { part: "status", text: error instanceof TypeError ? messageOf(error) : labels.refused });
    alert.setAttribute("role", "alert");
    alert.append(button(labels.retry, () => this.restart()));
    const chat = make("div", { part: "chat", children: [alert] });
    chat.dir = isRightToLeft(language) ? "rtl" : "ltr";
    chat.dataset.status = "refused";
    this.#root.replaceChildren(make("style", { text: STYLE }), chat);
    this.#report(error);
  }

  #report(error: unknown): void {
    this.#emit("khala-error", { error });
  }

  #emit(type: string, detail: unknown): void {
    this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true }));
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

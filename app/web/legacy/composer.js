// The composer: a text field that grows, its limit, and the button that sends or stops.

export const LONGEST_TEXT = 100_000;
const HINT = "Enter sends, Shift+Enter starts a new line";
const SAID_MS = 8000;

export class Composer {
  #form = document.getElementById("composer");
  #text = document.getElementById("text");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #hint = document.getElementById("hint");
  #count = document.getElementById("count");
  #actions;
  #shown = { busy: false, closed: false, stoppable: false };

  constructor(actions) {
    this.#actions = actions;
    this.#form.addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
    this.#text.addEventListener("keydown", (event) => this.#key(event));
    this.#text.addEventListener("input", () => (this.#edited(), this.#actions.typed(!this.#text.value.trim())));
    this.#stop.addEventListener("click", () => this.#halt());
    if (matchMedia("(hover: hover)").matches) this.focus();
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  /** Put a text into the field, for the person to change and send. */
  put(text) {
    this.#text.value = text;
    this.#edited();
    this.focus();
  }

  /** Say something under the field for a while. */
  say(words) {
    this.#hint.textContent = words;
    this.#hint.setAttribute("role", "alert");
    setTimeout(() => this.#hint.textContent === words && this.#hush(), SAID_MS);
  }

  #hush() {
    this.#hint.removeAttribute("role");
    this.#hint.textContent = HINT;
  }

  draw(changes) {
    const { busy, closed, stoppable } = Object.assign(this.#shown, changes);
    const { length } = this.#text.value;
    const over = length > LONGEST_TEXT;
    const limit = LONGEST_TEXT.toLocaleString("en");
    this.#count.textContent = length ? `${length.toLocaleString("en")} / ${limit}` : `Up to ${limit} characters`;
    this.#count.classList.toggle("bad", over);
    this.#text.setAttribute("aria-invalid", String(over));
    this.#text.disabled = closed;
    this.#send.disabled = busy || closed || over || this.#isEmpty || this.#actions.obstacle() !== null;
    this.#send.hidden = stoppable;
    this.#stop.hidden = !stoppable;
  }

  get #isEmpty() {
    return !this.#text.value.trim() && this.#actions.files() === 0;
  }

  #edited() {
    this.draw({});
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.#text.value.replaceAll("\0", "").toWellFormed();
    if (this.#isEmpty) return;
    if (text.length > LONGEST_TEXT) return this.say(`That is ${(text.length - LONGEST_TEXT).toLocaleString("en")} characters too long.`);
    if (this.#shown.closed) return;
    if (this.#actions.busy()) return this.say("An answer is being written; wait for it or stop it.");
    if (this.#actions.obstacle() !== null) return this.say(this.#actions.obstacle());
    this.#hush();
    this.put("");
    this.#actions.typed(true);
    this.#actions.send(text);
  }

  /** One press is enough; the button comes back if the answer can't be stopped. */
  async #halt() {
    this.#stop.disabled = true;
    await this.#actions.stop();
    this.#stop.disabled = false;
    this.focus();
  }
}

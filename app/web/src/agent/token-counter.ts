// Counts the tokens of a growing text incrementally: exactly for OpenAI's models, approximately for others.

/** `exact` is false for models without a public tokenizer. They are counted with OpenAI's newest one, which is close. */
export type TokenCount = { tokens: number; exact: boolean };

type Encoding = "o200k_base" | "cl100k_base";
type CountTokens = (text: string) => number;

/** A longer stretch without a safe place is cut anywhere, because encoding it takes quadratic time. */
export const MAX_STRETCH_CHARACTERS = 4_096;

/**
 * Safe places to cut a text: both parts encode as they do together, whatever text follows.
 *
 * Both encodings split a text by a regular expression without lookbehind, and encode each piece by itself. A place is safe if a
 * piece must end there and the expression has looked ahead no further than one character:
 * - after a letter, before anything but a letter, mark or apostrophe (which may begin `'ll`),
 * - after a digit, before anything but a digit,
 * - after anything but a space, before a space,
 * - after a line end, before anything but a space or slash (which o200k joins with the line end).
 * A place before half of a surrogate pair is never safe, because the pair is not known yet.
 */
const SAFE =
  /(?<=\p{L})(?=[^\p{L}\p{M}'\p{Cs}])|(?<=\p{N})(?=[^\p{N}\p{Cs}])|(?<=\S)(?= )|(?<=\n)(?=[^\s/\p{Cs}])/gu;

export class TokenCounter {
  readonly #count: CountTokens;
  #exact: boolean;
  #settled = 0;
  #rest = "";
  #characters = 0;

  constructor(count: CountTokens, exact: boolean) {
    this.#count = count;
    this.#exact = exact;
  }

  /** The number of UTF-16 units appended so far. */
  get characters(): number {
    return this.#characters;
  }

  /** Append a text. Returns the tokens of the whole text, as if it were encoded at once. */
  append(text: string): TokenCount {
    this.#characters += text.length;
    this.#rest += text;
    this.#settle();
    return { tokens: this.#settled + this.#count(this.#rest), exact: this.#exact };
  }

  /** Count up to the last safe place for good, in stretches of limited length. */
  #settle(): void {
    let done = 0;
    let safe = 0;
    for (const { index } of this.#rest.matchAll(SAFE)) {
      if (index - safe > MAX_STRETCH_CHARACTERS) done = this.#cut(done, index);
      safe = index;
      if (safe - done >= MAX_STRETCH_CHARACTERS) done = this.#add(done, safe);
    }
    if (safe > done) done = this.#add(done, safe);
    if (this.#rest.length - done > MAX_STRETCH_CHARACTERS) done = this.#cut(done, this.#rest.length);
    this.#rest = this.#rest.slice(done);
  }

  #cut(from: number, to: number): number {
    this.#exact = false;
    let done = from;
    while (to - done > MAX_STRETCH_CHARACTERS) done = this.#add(done, done + MAX_STRETCH_CHARACTERS);
    return done;
  }

  #add(from: number, to: number): number {
    this.#settled += this.#count(this.#rest.slice(from, to));
    return to;
  }
}

/** The encoding of a model (`provider:name`), or the one that is assumed. */
export function encodingOf(model: string): { encoding: Encoding; exact: boolean } {
  const [provider, name = ""] = split(model);
  if (provider !== "openai") return { encoding: "o200k_base", exact: false };
  if (/^(gpt-4o|chatgpt-4o|gpt-4\.|gpt-5|gpt-oss|o[1-9])/.test(name)) return { encoding: "o200k_base", exact: true };
  if (/^(gpt-4|gpt-3\.5)(-|$)/.test(name)) return { encoding: "cl100k_base", exact: true };
  return { encoding: "o200k_base", exact: false };
}

function split(model: string): [string, string?] {
  const at = model.indexOf(":");
  return at < 0 ? [model] : [model.slice(0, at), model.slice(at + 1)];
}

const loaded = new Map<Encoding, Promise<CountTokens>>();

/** Create a counter for a model. The tokenizer of one or two megabytes is loaded on first use. */
export async function createCounter(model: string): Promise<TokenCounter> {
  const { encoding, exact } = encodingOf(model);
  return new TokenCounter(await load(encoding), exact);
}

/** A failed load is retried by the next call. */
export function load(encoding: Encoding): Promise<CountTokens> {
  const loading = loaded.get(encoding) ?? (encoding === "o200k_base" ? o200k() : cl100k());
  loaded.set(encoding, loading);
  loading.catch(() => loaded.delete(encoding));
  return loading;
}

// Special tokens are counted as text, because a message can't contain special tokens.
const AS_TEXT = { disallowedSpecial: new Set<string>() };

async function o200k(): Promise<CountTokens> {
  const { countTokens } = await import("gpt-tokenizer/encoding/o200k_base");
  return (text) => countTokens(text, AS_TEXT);
}

async function cl100k(): Promise<CountTokens> {
  const { countTokens } = await import("gpt-tokenizer/encoding/cl100k_base");
  return (text) => countTokens(text, AS_TEXT);
}

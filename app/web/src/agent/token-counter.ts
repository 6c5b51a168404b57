// How many tokens a growing text has: counted exactly for OpenAI's models, without counting it all again for each word.

/** `exact` is false for models whose tokenizer is not public: then the count is of OpenAI's newest, which is near. */
export type TokenCount = { tokens: number; exact: boolean };

type Encoding = "o200k_base" | "cl100k_base";
type CountTokens = (text: string) => number;

/** Text between two safe places that is longer than this is cut in any place: to encode such a piece takes time that grows with its square. */
export const MAX_STRETCH_CHARACTERS = 4_096;

/**
 * Places where a text can be cut so that both parts encode as they do together, and go on to, whatever follows.
 *
 * Both encodings split a text by a regular expression that never looks back, and encode each piece by itself. A place is
 * safe if a piece must end there and what is before has been looked at no further than to the character after it:
 * - after a letter, before what is no letter, no mark and no apostrophe (which may begin `'ll`),
 * - after a digit, before what is no digit,
 * - after what is no space, before a space,
 * - after a line's end, before what is neither a space nor a slash (which o200k takes with the line's end).
 * Half of a surrogate pair may yet become anything, so no place before one is safe.
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

  /** How many UTF-16 units were appended so far. */
  get characters(): number {
    return this.#characters;
  }

  /** The tokens of all that was appended so far, as if it were encoded in one go. */
  append(text: string): TokenCount {
    this.#characters += text.length;
    this.#rest += text;
    this.#settle();
    return { tokens: this.#settled + this.#count(this.#rest), exact: this.#exact };
  }

  /** Counts up to the last safe place for good, in parts that are not too long. */
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

/** Which encoding a model (`provider:name`) has, or is taken to have. */
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

/** A counter for a model. The tokenizer, of a megabyte or two, is loaded when it is first asked for. */
export async function createCounter(model: string): Promise<TokenCounter> {
  const { encoding, exact } = encodingOf(model);
  return new TokenCounter(await load(encoding), exact);
}

/** A load that failed may be tried again. */
export function load(encoding: Encoding): Promise<CountTokens> {
  const loading = loaded.get(encoding) ?? (encoding === "o200k_base" ? o200k() : cl100k());
  loaded.set(encoding, loading);
  loading.catch(() => loaded.delete(encoding));
  return loading;
}

// What looks like a special token is text here, since who writes a message can't write special tokens.
const AS_TEXT = { disallowedSpecial: new Set<string>() };

async function o200k(): Promise<CountTokens> {
  const { countTokens } = await import("gpt-tokenizer/encoding/o200k_base");
  return (text) => countTokens(text, AS_TEXT);
}

async function cl100k(): Promise<CountTokens> {
  const { countTokens } = await import("gpt-tokenizer/encoding/cl100k_base");
  return (text) => countTokens(text, AS_TEXT);
}

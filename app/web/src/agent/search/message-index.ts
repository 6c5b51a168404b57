// The index of messages in memory: finds messages that contain the words first, then lexically similar ones.

import { embed } from "../embed.ts";
import type { Engine } from "../engines/engine.ts";
import { wordsOf } from "../word-segments.ts";
import { Postings } from "./postings.ts";
import { snippetOf, type Snippet } from "./snippet.ts";

/** `at` is its time in ms since the epoch. `key` is the id of the message, or of the thread for its title. */
export type IndexEntry = { key: string; threadId: string; messageId: string | null; text: string; at: number };
/** `by` is "words" if every word of the query begins a word of the text, else "likeness". `score` is from 0 to 1 within each. */
export type IndexHit = IndexEntry & Snippet & { score: number; by: "words" | "likeness" };

const MAX_QUERY_CHARACTERS = 400;
/** Further words of a query are ignored. */
const MAX_QUERY_WORDS = 16;
/** Unrelated texts have similarities of about ±0.05; among many thousands hardly one reaches this by chance. */
const MIN_LIKENESS = 0.2;
/** The index is compacted when there are this many removed entries, and more than remaining ones. */
const MAX_HOLES = 1_000;

export class MessageIndex {
  readonly #engine: Engine;
  readonly #postings = new Postings();
  readonly #places = new Map<string, number>();
  #entries: (IndexEntry | null)[] = [];

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  get size(): number {
    return this.#places.size;
  }

  get(key: string): IndexEntry | null {
    return this.#entries[this.#places.get(key) ?? -1] ?? null;
  }

  /** Add an entry, replacing the one with the same key. `vector` is that of the text, if known. */
  put(entry: IndexEntry, vector = embed(entry.text)): void {
    this.remove(entry.key);
    const place = this.#entries.push(entry) - 1;
    this.#places.set(entry.key, place);
    this.#postings.add(place, new Set(wordsOf(entry.text).map(({ word }) => word)));
    this.#engine.add(entry.key, vector);
  }

  remove(key: string): void {
    const place = this.#places.get(key);
    if (place === undefined) return;
    this.#entries[place] = null;
    this.#places.delete(key);
    this.#engine.remove(key);
    const holes = this.#entries.length - this.size;
    if (holes > MAX_HOLES && holes > this.size) this.#compact();
  }

  clear(): void {
    this.#entries = [];
    this.#places.clear();
    this.#postings.compact(() => undefined);
    this.#engine.clear();
  }

  /** Up to `k` hits, best first; of equally good ones the newest first. */
  search(query: string, k: number): IndexHit[] {
    const asked = query.slice(0, MAX_QUERY_CHARACTERS);
    const words = [...new Set(wordsOf(asked).map(({ word }) => word))].slice(0, MAX_QUERY_WORDS);
    if (words.length === 0 || k < 1) return [];
    const exact = this.#withWords(words, k);
    const taken = new Set(exact.map(({ entry }) => entry.key));
    const alike = exact.length < k ? this.#alike(asked, k - exact.length, taken) : [];
    return [
      ...exact.map(({ entry, score }): IndexHit => ({ ...entry, ...snippetOf(entry.text, words), score, by: "words" })),
      ...alike.map(({ entry, score }): IndexHit => ({ ...entry, ...snippetOf(entry.text, words), score, by: "likeness" })),
    ];
  }

  /** The entries in which each word of the query begins a word. The score is the mean share of those words that the query has. */
  #withWords(words: readonly string[], k: number): { entry: IndexEntry; score: number }[] {
    const count = this.#entries.length;
    const sums = new Float32Array(count).fill(1);
    words.forEach((word, index) => {
      const fits = this.#postings.fits(word, count);
      for (let place = 0; place < count; place++) {
        const fit = fits[place] ?? 0;
        sums[place] = fit === 0 || sums[place] === 0 ? 0 : (index === 0 ? 0 : (sums[place] ?? 0)) + fit;
      }
    });
    const found: { entry: IndexEntry; score: number }[] = [];
    this.#entries.forEach((entry, place) => {
      const sum = sums[place] ?? 0;
      if (entry && sum > 0) found.push({ entry, score: sum / words.length });
    });
    return found.sort((a, b) => b.score - a.score || b.entry.at - a.entry.at).slice(0, k);
  }

  #alike(query: string, k: number, except: ReadonlySet<string>): { entry: IndexEntry; score: number }[] {
    return this.#engine
      .search(embed(query), k + except.size)
      .flatMap(({ id, score }) => {
        const entry = except.has(id) || score < MIN_LIKENESS ? null : this.get(id);
        return entry ? [{ entry, score }] : [];
      })
      .slice(0, k);
  }

  #compact(): void {
    const places = new Map<number, number>();
    const entries: IndexEntry[] = [];
    this.#entries.forEach((entry, place) => {
      if (entry) places.set(place, entries.push(entry) - 1);
    });
    this.#entries = entries;
    entries.forEach(({ key }, place) => this.#places.set(key, place));
    this.#postings.compact((place) => places.get(place));
  }
}

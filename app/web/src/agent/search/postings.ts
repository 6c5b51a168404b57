// The inverted index: which entries, by number, contain which words, for whole words and prefixes.

/** The maximum number of words with the same prefix that are considered. */
const MAX_COMPLETIONS = 5_000;
/** New words stay unsorted up to this number. */
const MAX_UNSORTED_WORDS = 2_000;

export class Postings {
  #places = new Map<string, number[]>();
  #sorted: string[] = [];
  #unsorted: string[] = [];

  /** Add the words of a new entry, each at most once. */
  add(place: number, words: Iterable<string>): void {
    for (const word of words) {
      const places = this.#places.get(word);
      if (places) {
        places.push(place);
      } else {
        this.#places.set(word, [place]);
        this.#unsorted.push(word);
      }
    }
    if (this.#unsorted.length > MAX_UNSORTED_WORDS) this.#sort();
  }

  /** For each of `count` entries, how well its best word matches: 1 for the whole word, less the more is missing, 0 for no match. */
  fits(start: string, count: number): Float32Array {
    const fits = new Float32Array(count);
    for (const word of this.#completions(start)) {
      const fit = start.length / word.length;
      for (const place of this.#places.get(word) ?? []) if (fit > (fits[place] ?? 0)) fits[place] = fit;
    }
    return fits;
  }

  /** Renumber all entries; those without a new number are removed. */
  compact(renumber: (place: number) => number | undefined): void {
    const kept = new Map<string, number[]>();
    for (const [word, places] of this.#places) {
      const left = places.map(renumber).filter((place) => place !== undefined);
      if (left.length > 0) kept.set(word, left);
    }
    this.#places = kept;
    this.#sorted = [];
    this.#unsorted = [...kept.keys()];
    this.#sort();
  }

  *#completions(start: string): Generator<string> {
    let left = MAX_COMPLETIONS;
    for (let index = lowerBound(this.#sorted, start); left > 0; index++, left--) {
      const word = this.#sorted[index];
      if (!word?.startsWith(start)) break;
      yield word;
    }
    for (const word of this.#unsorted) if (word.startsWith(start)) yield word;
  }

  #sort(): void {
    this.#sorted = this.#sorted.concat(this.#unsorted).sort(byUnits);
    this.#unsorted = [];
  }
}

/** In the order of UTF-16 units, as `<` has it, so that words with the same prefix are adjacent. */
function byUnits(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function lowerBound(sorted: readonly string[], word: string): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((sorted[middle] ?? "") < word) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The interface of all engines of vector search, and the selection of the best scores that they share.

/** The number of dimensions of a vector. */
export const DIMENSIONS = 384;

export type EngineHit = { id: string; score: number };

/** Finds vectors by cosine similarity. Vectors have length 1, or are all zeros and similar to nothing. */
export interface Engine {
  readonly name: "simd" | "ruvector" | "plain";
  readonly size: number;
  /** Store a copy of the vector, replacing that of the same id. Throws RangeError unless it has 384 numbers. */
  add(id: string, vector: Float32Array): void;
  /** Returns false if there is no such id. */
  remove(id: string): boolean;
  /** The `k` most similar vectors, best first, with cosines from -1 to 1. */
  search(vector: Float32Array, k: number): EngineHit[];
  clear(): void;
}

export function checkDimensions(vector: Float32Array): void {
  if (vector.length !== DIMENSIONS) throw new RangeError(`A vector has ${DIMENSIONS} numbers, not ${vector.length}.`);
}

/** The indices of the `k` highest of the first `count` scores, highest first. Of equal scores the lower index comes first. */
export function topIndices(scores: Float32Array, count: number, k: number): number[] {
  const places: number[] = [];
  if (k < 1) return places;
  let bar = -Infinity;
  for (let place = 0; place < count; place++) {
    const score = scores[place] ?? -Infinity;
    if (places.length === k && !(score > bar)) continue;
    if (places.length === k) places.pop();
    let at = places.length;
    while (at > 0 && score > (scores[places[at - 1] ?? 0] ?? -Infinity)) at--;
    places.splice(at, 0, place);
    bar = scores[places.at(-1) ?? 0] ?? -Infinity;
  }
  return places;
}

/** The row of each id, without holes: the last row moves to where one was removed. */
export class RowTable {
  readonly #ids: string[] = [];
  readonly #rows = new Map<string, number>();

  get size(): number {
    return this.#ids.length;
  }

  idAt(row: number): string {
    const id = this.#ids[row];
    if (id === undefined) throw new RangeError(`There is no row ${row}.`);
    return id;
  }

  /** The row of the id; a new one at the end if it has none. */
  place(id: string): number {
    const known = this.#rows.get(id);
    if (known !== undefined) return known;
    this.#rows.set(id, this.#ids.push(id) - 1);
    return this.#ids.length - 1;
  }

  /** Which row must be moved where; null if the id has no row. */
  remove(id: string): { from: number; to: number } | null {
    const to = this.#rows.get(id);
    const last = this.#ids.pop();
    if (to === undefined || last === undefined) {
      if (last !== undefined) this.#ids.push(last);
      return null;
    }
    this.#rows.delete(id);
    const from = this.#ids.length;
    if (from !== to) {
      this.#ids[to] = last;
      this.#rows.set(last, to);
    }
    return { from, to };
  }

  clear(): void {
    this.#ids.length = 0;
    this.#rows.clear();
  }
}

// The engine in plain JavaScript, which works everywhere. The other engines are tested against it.

import { DIMENSIONS, topIndices, checkDimensions, RowTable, type Engine, type EngineHit } from "./engine.ts";

const FIRST_ROWS = 256;

export function createPlainEngine(): Engine {
  return new PlainEngine();
}

class PlainEngine implements Engine {
  readonly name = "plain";
  readonly #rows = new RowTable();
  #numbers = new Float32Array(FIRST_ROWS * DIMENSIONS);

  get size(): number {
    return this.#rows.size;
  }

  add(id: string, vector: Float32Array): void {
    checkDimensions(vector);
    const at = this.#rows.place(id) * DIMENSIONS;
    if (at === this.#numbers.length) this.#grow();
    this.#numbers.set(vector, at);
  }

  remove(id: string): boolean {
    const moved = this.#rows.remove(id);
    if (moved) this.#numbers.copyWithin(moved.to * DIMENSIONS, moved.from * DIMENSIONS, (moved.from + 1) * DIMENSIONS);
    return moved !== null;
  }

  search(vector: Float32Array, k: number): EngineHit[] {
    checkDimensions(vector);
    const scores = new Float32Array(this.size);
    for (let row = 0; row < scores.length; row++) scores[row] = this.#dot(vector, row * DIMENSIONS);
    return topIndices(scores, scores.length, k).map((row) => ({ id: this.#rows.idAt(row), score: scores[row] ?? 0 }));
  }

  clear(): void {
    this.#rows.clear();
    this.#numbers = new Float32Array(FIRST_ROWS * DIMENSIONS);
  }

  #dot(vector: Float32Array, from: number): number {
    const numbers = this.#numbers;
    const { length } = vector;
    let even = 0;
    let odd = 0;
    // Two sums, because each addition depends on the one before. `?? 0` never applies and costs nothing.
    for (let index = 0; index < length; index += 2) {
      even += (vector[index] ?? 0) * (numbers[from + index] ?? 0);
      odd += (vector[index + 1] ?? 0) * (numbers[from + index + 1] ?? 0);
    }
    return even + odd;
  }

  #grow(): void {
    const larger = new Float32Array(this.#numbers.length * 2);
    larger.set(this.#numbers);
    this.#numbers = larger;
  }
}

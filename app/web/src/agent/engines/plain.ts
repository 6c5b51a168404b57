// The engine that works everywhere: an exact scan in JavaScript. The other engines are held to what it answers.

import { DIMENSIONS, highest, insistOnDimensions, Rows, type Engine, type Found } from "./engine.ts";

const FIRST_ROWS = 256;

export function plain(): Engine {
  return new Plain();
}

class Plain implements Engine {
  readonly name = "plain";
  readonly #rows = new Rows();
  #numbers = new Float32Array(FIRST_ROWS * DIMENSIONS);

  get size(): number {
    return this.#rows.size;
  }

  add(id: string, vector: Float32Array): void {
    insistOnDimensions(vector);
    const at = this.#rows.place(id) * DIMENSIONS;
    if (at === this.#numbers.length) this.#grow();
    this.#numbers.set(vector, at);
  }

  remove(id: string): boolean {
    const moved = this.#rows.remove(id);
    if (moved) this.#numbers.copyWithin(moved.to * DIMENSIONS, moved.from * DIMENSIONS, (moved.from + 1) * DIMENSIONS);
    return moved !== null;
  }

  search(vector: Float32Array, k: number): Found[] {
    insistOnDimensions(vector);
    const scores = new Float32Array(this.size);
    for (let row = 0; row < scores.length; row++) scores[row] = this.#dot(vector, row * DIMENSIONS);
    return highest(scores, scores.length, k).map((row) => ({ id: this.#rows.idAt(row), score: scores[row] ?? 0 }));
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
    // Two sums, because each addition would wait for the one before; `?? 0` is never taken, and costs nothing.
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

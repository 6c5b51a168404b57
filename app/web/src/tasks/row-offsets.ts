// The offsets of rows of different heights, for a virtual list.

/** Row heights (px) in a Fenwick tree: updates and lookups take logarithmic time. */
export class RowOffsets {
  readonly #estimate: number;
  #heights: number[] = [];
  #sums: number[] = [0];

  /** `estimate` is the height (px) of a row that is not measured yet. */
  constructor(count: number, estimate: number) {
    this.#estimate = estimate;
    this.resize(count);
  }

  get count(): number {
    return this.#heights.length;
  }

  get total(): number {
    return this.before(this.count);
  }

  /** Change the number of rows; remaining rows keep their heights. */
  resize(count: number): void {
    if (count < this.count) {
      this.#heights.length = count;
      this.#sums.length = count + 1;
    }
    for (let index = this.count; index < count; index++) {
      this.#heights.push(this.#estimate);
      const at = index + 1;
      this.#sums.push(this.before(index) - this.before(at - (at & -at)) + this.#estimate);
    }
  }

  /** Set the height of a row. Returns the difference to the previous height. */
  set(index: number, height: number): number {
    const before = this.#heights[index];
    if (before === undefined || before === height) return 0;
    this.#heights[index] = height;
    for (let at = index + 1; at < this.#sums.length; at += at & -at) this.#sums[at] = (this.#sums[at] ?? 0) + height - before;
    return height - before;
  }

  /** The offset of a row: the total height of all rows before it. */
  before(index: number): number {
    let sum = 0;
    for (let at = index; at > 0; at -= at & -at) sum += this.#sums[at] ?? 0;
    return sum;
  }

  /** The index of the row at this offset, clamped to the list; 0 if the list is empty. */
  at(offset: number): number {
    let [found, left] = [0, offset];
    for (let step = 2 ** Math.floor(Math.log2(Math.max(1, this.count))); step >= 1; step /= 2) {
      const sum = this.#sums[found + step];
      if (sum === undefined || sum > left) continue;
      found += step;
      left -= sum;
    }
    return Math.max(0, Math.min(found, this.count - 1));
  }

  /** The rows between two offsets, as a half-open range, with `overscan` more on either side. */
  within(top: number, bottom: number, overscan: number): { from: number; to: number } {
    if (this.count === 0) return { from: 0, to: 0 };
    const from = Math.max(0, this.at(top) - overscan);
    return { from, to: Math.min(this.count, this.at(bottom) + 1 + overscan) };
  }
}

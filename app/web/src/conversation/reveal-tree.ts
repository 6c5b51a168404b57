// Reveals a rendered tree character by character: what is not revealed yet is not in the document.

import { cutBefore, lastCharacterLength } from "./graphemes.ts";
import { morph } from "./morph.ts";

/** What appears at once, because half of it would be no use or would move the rest. */
const WHOLE = ".code-bar, .math, .box, tr, details, .footnote-label, button, br, hr";

type Step = { readonly node: Node; readonly parent: number; readonly weight: number; readonly isWhole: boolean };

/** A rendered tree, the source of what is revealed. Its nodes stay detached. */
export class RevealTree {
  readonly steps: readonly Step[];
  /** The characters of the tree. */
  readonly weight: number;

  constructor(root: Node) {
    const steps: Step[] = [];
    collect(root, -1, steps);
    this.steps = steps;
    this.weight = steps.reduce((sum, { weight }) => sum + weight, 0);
  }

  /** The length of the last character, which may still change while the text grows. */
  get lastLength(): number {
    const last = this.steps.at(-1);
    return last?.node instanceof Text ? lastCharacterLength(last.node.data) : 0;
  }
}

function collect(parent: Node, index: number, steps: Step[]): void {
  for (const node of parent.childNodes) {
    const whole = isWhole(node);
    const weight = node instanceof Text ? node.length : whole ? Math.max(1, node.textContent?.length ?? 0) : 0;
    steps.push({ node, parent: index, weight, isWhole: whole });
    if (!whole) collect(node, steps.length - 1, steps);
  }
}

function isWhole(node: Node): boolean {
  return node instanceof Element && node.matches(WHOLE);
}

/** Copies a tree into an element of the document, as far as it is revealed. */
export class RevealCursor {
  readonly #tree: RevealTree;
  #host: Element;
  /** The nodes below the host, parallel to the steps of the tree. */
  #live: Node[] = [];
  /** How much of the last node is shown, if it is text. */
  #offset = 0;
  #shown = 0;

  private constructor(tree: RevealTree, host: Element) {
    this.#tree = tree;
    this.#host = host;
  }

  /** Shows the first `skip` characters at once. Nodes that the host has already are kept where they fit. */
  static start(tree: RevealTree, host: Element, skip: number): RevealCursor {
    const cursor = new RevealCursor(tree, document.createElement("div"));
    cursor.advance(skip);
    morph(host, cursor.#host);
    cursor.#host = host;
    cursor.#live = nodesBelow(host);
    return cursor;
  }

  /** The characters that are not shown yet. */
  get pending(): number {
    return this.#tree.weight - this.#shown;
  }

  /**
   * Shows up to `count` more characters, and returns how many. It is less if the next character is longer, and more if
   * something appears that can't be divided.
   */
  advance(count: number): number {
    const before = this.#shown;
    while (this.#shown - before < count && this.pending > 0) if (!this.#step(count - (this.#shown - before))) break;
    if (this.pending === 0) while (this.#live.length < this.#tree.steps.length) this.#appendNext();
    return this.#shown - before;
  }

  /** Goes on by one node or a part of a text; returns whether anything happened. */
  #step(count: number): boolean {
    const node = this.#tree.steps[this.#live.length - 1]?.node;
    if (!(node instanceof Text) || this.#offset >= node.length) return this.#appendNext();
    const cut = cutBefore(node.data, this.#offset, this.#offset + count);
    if (cut === this.#offset) return false;
    (this.#live.at(-1) as Text).appendData(node.data.slice(this.#offset, cut));
    this.#shown += cut - this.#offset;
    this.#offset = cut;
    return true;
  }

  /** Appends the next node: a text still without its characters, anything else with its weight. */
  #appendNext(): boolean {
    const step = this.#tree.steps[this.#live.length];
    if (!step) return false;
    const node = step.node instanceof Text ? document.createTextNode("") : step.node.cloneNode(step.isWhole);
    (this.#live[step.parent] ?? this.#host).appendChild(node);
    this.#live.push(node);
    this.#offset = 0;
    if (!(step.node instanceof Text)) this.#shown += step.weight;
    return true;
  }
}

/** The nodes below an element in document order; what appears as a whole is one. */
function nodesBelow(parent: Node): Node[] {
  return [...parent.childNodes].flatMap((node) => (isWhole(node) ? [node] : [node, ...nodesBelow(node)]));
}

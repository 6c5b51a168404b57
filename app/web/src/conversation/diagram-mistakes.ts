// Why a diagram can't be drawn, in one line.

const MAX_MESSAGE_CHARACTERS = 200;

/** What is wrong with a diagram: a line that can't be read, a kind that is unknown, a size that takes too long, or something that Mermaid says in English. */
export type DiagramMistake =
  | { readonly kind: "line"; readonly line: number }
  | { readonly kind: "unknown"; readonly name: string }
  | { readonly kind: "large" }
  | { readonly kind: "other"; readonly message: string };

/** The diagram can't be drawn because of its text. */
export class DiagramError extends Error {
  override readonly name = "DiagramError";

  constructor(readonly mistake: DiagramMistake) {
    super(mistake.kind);
  }
}

/** The mistake that Mermaid's message tells, without the excerpts and the names of tokens in it. */
export function mistakeOf(message: string, diagram: string): DiagramMistake {
  if (message.startsWith("No diagram type detected")) return { kind: "unknown", name: kindOf(diagram) };
  const line = /\b(?:Parse|Lexer|Lexical) error on line (\d+)/i.exec(message)?.[1];
  if (line !== undefined) return { kind: "line", line: Number(line) };
  return { kind: "other", message: (/^[^\n]*/.exec(message)?.[0] ?? "").replace(/:\s*$/, ".").slice(0, MAX_MESSAGE_CHARACTERS) };
}

/** The first word of a diagram, behind its options and comments. */
function kindOf(diagram: string): string {
  const plain = diagram.replace(/^\s*---\n[^]*?\n---\s*\n/, "").replace(/^\s*%%.*$/gm, "");
  return (/\S+/.exec(plain)?.[0] ?? "").slice(0, 40);
}

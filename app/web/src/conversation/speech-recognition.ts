// Speech recognition of the browser, where it has it. TypeScript has no types of it yet.

export interface SpeechResult {
  readonly isFinal: boolean;
  readonly [index: number]: { readonly transcript: string } | undefined;
}

/** The part of `SpeechRecognition` that is used here. */
export interface Recognition {
  lang: string;
  continuous: boolean;
  interimResults: boolean;
  onresult: ((event: { readonly results: ArrayLike<SpeechResult> }) => void) | null;
  onerror: ((event: { readonly error: string }) => void) | null;
  onend: (() => void) | null;
  start(): void;
  abort(): void;
  stop(): void;
}

type Constructor = new () => Recognition;
type Scope = { SpeechRecognition?: Constructor; webkitSpeechRecognition?: Constructor };

/** The browser's recognition; null if it has none. */
export function recognitionOf(scope: Scope = globalThis as Scope): Constructor | null {
  return scope.SpeechRecognition ?? scope.webkitSpeechRecognition ?? null;
}

/** The text of a message after dictation: what was typed before, and all that was recognised since. */
export function withSpeech(before: string, results: ArrayLike<SpeechResult>): string {
  const spoken = Array.from(results, (result) => result[0]?.transcript ?? "").join("").trim();
  return spoken === "" ? before : before === "" || /\s$/.test(before) ? before + spoken : `${before} ${spoken}`;
}

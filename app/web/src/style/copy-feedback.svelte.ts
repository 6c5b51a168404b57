// Copies a text, and says for a moment whether that succeeded.

import { COPY_LABELS } from "../state/strings.ts";

const FEEDBACK_MS = 1500;

export class CopyFeedback {
  label = $state<string>(COPY_LABELS.ready);

  async copy(text: string): Promise<void> {
    this.label = await navigator.clipboard.writeText(text).then(() => COPY_LABELS.copied, () => COPY_LABELS.failed);
    setTimeout(() => (this.label = COPY_LABELS.ready), FEEDBACK_MS);
  }
}

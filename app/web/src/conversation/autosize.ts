// Fits the height of a text field to its text; the style sheet sets the maximum.

export function autosize(field: HTMLTextAreaElement): void {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

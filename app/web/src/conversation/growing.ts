// A text field that is as high as its text; its style sheet says how high it may become.

export function grow(field: HTMLTextAreaElement): void {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

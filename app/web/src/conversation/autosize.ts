// Fits the height of a text field to its text; the style sheet sets the maximum.

/** Whether the style sheet does it by `field-sizing`, without a layout of the whole page for each letter. */
const IS_SIZED_BY_STYLES = CSS.supports("field-sizing", "content");

export function autosize(field: HTMLTextAreaElement): void {
  if (IS_SIZED_BY_STYLES) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

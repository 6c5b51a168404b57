// Reads the fields of forms.

/** The text of a field without white space around it; empty if there is none. */
export function textOf(fields: FormData, name: string): string {
  const value = fields.get(name);
  return typeof value === "string" ? value.trim() : "";
}
